"""The preflight against real servers: each fault is found with its code, and its fix mends it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection
from cdc_core.source.preflight import find_problems
from cdc_core.source.problems import Problem, Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.postgres_server import Database, PostgresServer

SOUND = "create table orders (id bigint primary key, note text)"


@pytest.fixture
def slot(database: Database) -> str:
    """Lend a name that no other test of this server uses."""
    return f"slot_{database.name}"


@pytest.fixture
def set_up(database: Database, slot: str) -> Callable[..., None]:
    """Lend a maker of tables, publication and slot, in that order."""

    def make(*statements: str, publication: str = "for all tables") -> None:
        for statement in statements or (SOUND,):
            database.execute(statement)
        database.execute(f"create publication walgate {publication}")
        make_slot(database, slot)

    return make


def make_slot(database: Database, slot: str) -> None:
    database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


def find(database: Database, slot: str, **settings: object) -> list[Problem]:
    source = SourceSettings.model_validate({"dsn": database.dsn, "slot": slot} | settings)
    with closing(open_connection(source)) as connection:
        return find_problems(connection, source)


def codes(problems: list[Problem], severity: Severity = Severity.ERROR) -> set[str]:
    return {problem.code for problem in problems if problem.severity is severity}


def fix_of(problems: list[Problem], code: str) -> str:
    (problem,) = [problem for problem in problems if problem.code == code]
    return problem.fix


def test_a_sound_source_has_no_errors(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up()
    assert codes(find(database, slot)) == set()


def test_missing_publication_slot_and_privilege_are_named_at_once(
    database: Database, slot: str
) -> None:
    role = f"plain_{database.name}"
    database.execute(f"create role {role} login")
    try:
        dsn = database.server.dsn(database.name, user=role)
        problems = find(database, slot, dsn=dsn)
        assert codes(problems) == {"publication_missing", "slot_missing", "role_replication"}
        database.execute(fix_of(problems, "role_replication"))
        assert "role_replication" not in codes(find(database, slot, dsn=dsn))
    finally:
        database.execute(f"drop role {role}")


def test_the_least_privileged_role_can_check(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    role = f"least_{database.name}"
    set_up("create schema shop", "create table shop.orders (id int primary key)")
    database.execute(f"create role {role} login replication")
    try:
        dsn = database.server.dsn(database.name, user=role)
        problems = find(database, slot, dsn=dsn)
        assert codes(problems) == {"role_select"}
        database.execute(fix_of(problems, "role_select"))
        assert codes(find(database, slot, dsn=dsn)) == set()
    finally:
        database.execute(f"drop owned by {role}")
        database.execute(f"drop role {role}")


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        (["create table t (id int)"], "no_key"),
        (["create table t (id int)", "alter table t replica identity full"], "no_key"),
        (["create table t (id int primary key)", "alter table t replica identity nothing"],
         "identity_nothing"),
        (["create table t (id int not null)", "create unique index i on t (id)",
          "alter table t replica identity using index i", "drop index i"], "no_key"),
        (['create table t (id int primary key, note text, "Note" text)'], "column_case"),
        (["create table t (id int primary key, _x int)"], "column_reserved"),
        (["create table t (id int primary key)", 'create table "T" (id int primary key)'],
         "path_clash"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_replicated_is_an_error(
    database: Database, slot: str, set_up: Callable[..., None], statements: list[str], code: str
) -> None:
    set_up(SOUND, *statements)
    problems = find(database, slot)
    assert codes(problems) == {code}
    assert {problem.table for problem in problems if problem.code == code} <= {
        "public.t",
        'public."T"',
    }


def test_identity_nothing_is_mended_by_its_fix(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up(
        'create table "a""b" (id int primary key)', 'alter table "a""b" replica identity nothing'
    )
    database.execute(fix_of(find(database, slot), "identity_nothing"))
    assert codes(find(database, slot)) == set()


def test_a_unique_index_serves_as_identity(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up(
        "create table t (id int not null, note text)",
        "create unique index i on t (id)",
        "alter table t replica identity using index i",
    )
    assert codes(find(database, slot)) == set()


def test_a_column_list_without_the_key_is_mended_by_its_fix(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up(publication="for table orders (note)")
    problems = find(database, slot)
    assert codes(problems) == {"column_list_key"}
    database.execute(fix_of(problems, "column_list_key"))
    assert codes(find(database, slot)) == set()


def test_a_publication_that_keeps_back_changes_is_mended_by_its_fix(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up(publication="for all tables with (publish = 'insert')")
    problems = find(database, slot)
    assert codes(problems) == {"publish_actions"}
    database.execute(fix_of(problems, "publish_actions"))
    assert codes(find(database, slot)) == set()


def test_an_empty_publication_is_an_error(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up(publication="")
    assert codes(find(database, slot)) == {"publication_empty"}


def test_a_publication_made_after_the_slot_is_a_warning(database: Database, slot: str) -> None:
    database.execute(SOUND)
    make_slot(database, slot)
    database.execute("create publication walgate for all tables")
    assert "publication_younger" in codes(find(database, slot), Severity.WARNING)


def test_history_28_a_two_phase_slot_is_refused(database: Database, slot: str) -> None:
    database.execute(SOUND)
    database.execute("create publication walgate for all tables")
    database.execute(
        "select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", [slot]
    )
    assert codes(find(database, slot)) == {"slot_two_phase"}


def test_a_slot_of_another_plugin_is_refused(database: Database, slot: str) -> None:
    database.execute(SOUND)
    database.execute("create publication walgate for all tables")
    database.execute("select pg_create_physical_replication_slot(%s)", [slot])
    try:
        assert codes(find(database, slot)) == {"slot_plugin"}
    finally:
        database.execute("select pg_drop_replication_slot(%s)", [slot])


def test_a_slot_of_another_database_is_refused(database: Database, slot: str) -> None:
    database.execute(SOUND)
    database.execute("create publication walgate for all tables")
    other = database.server.create_database(f"{database.name}_other")
    try:
        make_slot(other, slot)
        assert codes(find(database, slot)) == {"slot_database"}
    finally:
        database.server.drop_database(other.name)


@pytest.mark.parametrize(
    ("application", "severity"), [("psql", Severity.ERROR), ("walgate", Severity.NOTE)]
)
def test_a_slot_in_use_is_an_error_unless_the_user_is_our_own_capture(
    database: Database,
    slot: str,
    set_up: Callable[..., None],
    application: str,
    severity: Severity,
) -> None:
    set_up()
    source = SourceSettings(dsn=database.dsn, slot=slot)
    start = sql.SQL("START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', {})").format(
        sql.Identifier(slot), sql.SQL("publication_names 'walgate'")
    )
    with closing(
        open_connection(source, application_name=application, replication=True)
    ) as consumer:
        consumer.execute(start)
        assert "slot_active" in codes(find(database, slot), severity)
        consumer.close()


def test_retained_wal_beyond_the_budget_is_an_error(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up()
    database.execute("insert into orders select i, repeat('x', 100) from generate_series(1, 50) i")
    assert codes(find(database, slot, slot_budget="1kB")) == {"slot_budget"}


def test_what_is_never_replicated_is_a_note(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up(
        "create table t (id serial primary key, twice int generated always as (id * 2) stored)",
        "create unlogged table quick (id int primary key)",
    )
    problems = find(database, slot)
    assert codes(problems) == set()
    assert codes(problems, Severity.NOTE) == {
        "not_replicated",
        "generated_columns",
        "publication_open",
    }


def test_origin_needs_version_16(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up()
    expected = {"origin"} if database.server.version < 16 else set()
    assert codes(find(database, slot, origin="none")) == expected


def test_the_check_reads_only_and_leaves_nothing(
    database: Database, slot: str, set_up: Callable[..., None]
) -> None:
    set_up(SOUND, "create table keyless (n int)")
    settings = "select array_agg(name || setting order by name) from pg_settings"
    relations = "select count(*) from pg_class"
    source = SourceSettings(dsn=database.dsn, slot=slot)
    with closing(open_connection(source)) as connection:
        before = connection.execute(settings).fetchone(), connection.execute(relations).fetchone()
        with connection.transaction():
            connection.execute("set transaction read only")
            assert codes(find_problems(connection, source)) == {"no_key"}
            assigned = connection.execute("select pg_current_xact_id_if_assigned()").fetchone()
        assert assigned == (None,)
        after = connection.execute(settings).fetchone(), connection.execute(relations).fetchone()
        assert after[0] is not None
        assert before[0] is not None
        odd = {f"transaction_read_only{value}" for value in ("on", "off")}
        assert set(after[0][0]) - odd == set(before[0][0]) - odd
        assert after[1] == before[1]


@pytest.mark.parametrize(("timeout", "warns"), [("0", False), ("2s", True), ("60s", False)])
def test_a_timeout_that_drops_a_busy_capture_is_a_warning(
    database18: Database, timeout: str, *, warns: bool
) -> None:
    slot = f"slot_{database18.name}"
    dsn = database18.server.dsn(database18.name, options=f"-c wal_sender_timeout={timeout}")
    found = codes(find(database18, slot, dsn=dsn), Severity.WARNING)
    assert ("wal_sender_timeout" in found) == warns


def test_a_server_not_ready_for_replication_is_named(
    private_postgres: Callable[..., PostgresServer],
) -> None:
    server = private_postgres(
        18,
        wal_level="replica",
        max_replication_slots="1",
        max_wal_senders="0",
        idle_replication_slot_timeout="1h",
    )
    server.execute("postgres", SOUND)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("select pg_create_physical_replication_slot('other')")
        source = SourceSettings(dsn=server.dsn())
        problems = find_problems(connection, source)
        assert {"wal_level", "wal_senders", "slots_exhausted"} <= codes(problems)
        assert "slot_timeout" in codes(problems, Severity.WARNING)


def test_a_lost_slot_is_named(private_postgres: Callable[..., PostgresServer]) -> None:
    server = private_postgres(
        18, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB"
    )
    server.execute("postgres", SOUND)
    server.execute("postgres", "create publication walgate for all tables")
    server.execute("postgres", "select pg_create_logical_replication_slot('walgate', 'pgoutput')")
    for _ in range(3):
        server.execute(
            "postgres", "select pg_switch_wal() from pg_logical_emit_message(false, '', 'x')"
        )
    server.execute("postgres", "checkpoint")
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        assert codes(find_problems(connection, SourceSettings(dsn=server.dsn()))) == {"slot_lost"}
