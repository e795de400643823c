"""What the preflight finds of published tables: by code, and what the source itself says to it."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection
from cdc_core.source.preflight import find_problems
from cdc_core.source.problems import Problem, Severity

if TYPE_CHECKING:
    from tests.postgres_server import Database


def find(
    database: Database, *statements: str, publication: str = "for table t", dsn: str = ""
) -> list[Problem]:
    """Run the statements, publish once, and look; there is no slot."""
    for statement in statements:
        database.execute(statement)
    if not database.query("select from pg_publication"):
        database.execute(f"create publication walgate {publication}")
    source = SourceSettings(dsn=dsn or database.dsn, slot="none_of_that_name")
    with closing(open_connection(source)) as connection:
        return [p for p in find_problems(connection, source) if p.code != "slot_missing"]


def codes(problems: list[Problem], severity: Severity = Severity.ERROR) -> set[str]:
    return {problem.code for problem in problems if problem.severity is severity}


def one(problems: list[Problem], code: str) -> Problem:
    (problem,) = [problem for problem in problems if problem.code == code]
    return problem


def refuses_changes(database: Database) -> bool:
    """Whether the source's own UPDATE fails for lack of a replica identity."""
    try:
        database.execute("update t set note = 'x'")
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return True
    except psycopg.errors.InvalidColumnReference:
        return True
    return False


KEYLESS = "create table t (id int, other int, note text)"


@pytest.mark.parametrize(
    ("statements", "code", "fix"),
    [
        ([KEYLESS], "no_key", "ADD PRIMARY KEY"),
        (["create table t (id int primary key deferrable initially deferred, note text)"],
         "deferrable_key", "REPLICA IDENTITY FULL"),
        ([KEYLESS, "create unique index u on t (id, other)"],
         "nullable_key", 'ALTER "id" SET NOT NULL; ALTER TABLE "public"."t" ALTER "other" SET NOT'),
        ([KEYLESS, "alter table t alter id set not null", "create unique index u on t (id)"],
         "no_key", 'REPLICA IDENTITY USING INDEX "u"'),
        ([KEYLESS, "alter table t alter id set not null",
          "create unique index u on t (id) where other > 0"], "no_key", "ADD PRIMARY KEY"),
        (["create table t (id int primary key, note text)",
          "alter table t replica identity nothing"], "identity_nothing", "IDENTITY DEFAULT"),
    ],
)  # fmt: skip
def test_a_table_whose_own_update_fails_is_named_and_mended(
    database: Database,
    statements: list[str],
    code: str,
    fix: str,
) -> None:
    problem = one(find(database, *statements, "insert into t (id, note) values (1, 'a')"), code)
    assert refuses_changes(database)
    assert fix in problem.fix
    if "…" not in problem.fix:
        database.execute("update pg_publication set pubupdate = false, pubdelete = false")
        database.execute("update t set " + ("other = 1" if "other" in statements[0] else "id = 1"))
        database.execute("update pg_publication set pubupdate = true, pubdelete = true")
        for statement in problem.fix.split("; "):
            database.execute(statement)
        assert codes(find(database)) == set()
        assert not refuses_changes(database)


def test_an_identity_index_over_a_column_that_may_be_null_is_refused(database: Database) -> None:
    # Servers 15 to 18 keep the columns NOT NULL; 14 does not, so the catalog is made to say so.
    database.execute("create table t (id int not null, note text)")
    database.execute("create unique index u on t (id)")
    database.execute("alter table t replica identity using index u")
    assert codes(find(database)) == set()
    database.execute(
        "update pg_attribute set attnotnull = false"
        " where attrelid = 't'::regclass and attname = 'id'"
    )
    problem = one(find(database), "nullable_key")
    assert "u allows many rows with NULL" in problem.what


def test_a_keyless_table_of_inserts_alone_is_told_without_a_false_alarm(
    database18: Database,
) -> None:
    problems = find(database18, KEYLESS, publication="for table t with (publish = 'insert')")
    assert "fail" not in one(problems, "no_key").what
    assert not refuses_changes(database18)


def test_columns_kept_in_an_index_beside_its_key_are_no_key(database18: Database) -> None:
    create = "create table t (id int, note text, primary key (id) include (note))"
    assert codes(find(database18, create, publication="for table t (id)")) == set()


def test_a_generated_key_cannot_identify_rows(database: Database) -> None:
    create = "create table t (a int, id int generated always as (a * 2) stored primary key)"
    problem = one(find(database, create), "generated_key")
    if database.server.version >= 18:
        database.execute("alter publication walgate set (publish_generated_columns = stored)")
        assert codes(find(database)) == set()
        assert 'ALTER PUBLICATION "walgate" SET (publish_generated_columns' in problem.fix


@pytest.mark.parametrize("kind", ["stored", "virtual"])
def test_generated_columns_under_identity_full(database: Database, kind: str) -> None:
    if kind == "virtual" and database.server.version < 18:
        kind = "stored"  # The only kind there is.
    problems = find(
        database,
        "create table t (id int primary key, note text,"
        f" g int generated always as (id * 2) {kind})",
        "alter table t replica identity full",
        "insert into t values (1, 'a')",
    )
    if database.server.version < 18:
        assert codes(problems) == set()
        assert one(problems, "generated_columns").found == "g"
        assert not refuses_changes(database)
        return
    problem = one(problems, "generated_identity")
    assert refuses_changes(database)
    database.execute(problem.fix)
    assert codes(find(database)) == set()
    assert not refuses_changes(database)


def test_a_row_filter_over_columns_that_old_rows_lack(database: Database) -> None:
    problems = find(
        database,
        'create table t (id int primary key, note text, "The Sum" int)',
        "insert into t values (1, 'a', 7)",
        publication='for table t where ("The Sum" > 5 and id > 0)',
    )
    problem = one(problems, "filter_key")
    assert problem.found == "The Sum"
    assert "The Sum" in one(problems, "row_filter").found
    assert refuses_changes(database)
    database.execute(problem.fix)
    assert codes(find(database)) == set()
    assert not refuses_changes(database)


def test_a_filter_on_the_key_is_a_note(database18: Database) -> None:
    problems = find(
        database18,
        "create table t (id int primary key, note text)",
        publication="for table t where (id > 5)",
    )
    assert codes(problems) == set()
    assert one(problems, "row_filter").severity is Severity.NOTE
    database18.execute("create publication whole for table t")
    source = SourceSettings(
        dsn=database18.dsn, slot="none_of_that_name", publication=("walgate", "whole")
    )
    with closing(open_connection(source)) as connection:
        assert "row_filter" not in {p.code for p in find_problems(connection, source)}


def test_a_column_list_names_what_it_leaves_out(database18: Database) -> None:
    create = "create table t (id int primary key, note text, secret text)"
    problems = find(database18, create, publication="for table t (id, note)")
    assert codes(problems) == set()
    assert one(problems, "column_list").found == "without secret"


def test_partitions_published_each_for_itself_are_named_once(database18: Database) -> None:
    problems = find(
        database18,
        "create table t (id int primary key) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "create table t2 partition of t for values from (10) to (20) partition by range (id)",
        "create table t21 partition of t2 for values from (10) to (20)",
    )
    assert codes(problems) == set()
    problem = one(problems, "partitions_apart")
    assert "the partitions of t are" in problem.what
    database18.execute(problem.fix.partition(" before")[0])
    mended = find(database18)
    assert codes(mended, Severity.WARNING) == {"leaf_truncate", "wal_unlimited"}


@pytest.mark.parametrize("identity", ["nothing", "using index other"])
def test_a_partition_that_sends_old_rows_without_the_key(
    database18: Database, identity: str
) -> None:
    problems = find(
        database18,
        "create table t (id int primary key, o int not null, note text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "create unique index other on t1 (o)",
        f"alter table t1 replica identity {identity}",
        publication="for table t with (publish_via_partition_root = true)",
    )
    problem = one(problems, "partition_identity")
    assert "public.t1" in problem.what
    database18.execute(problem.fix)
    assert codes(find(database18)) == set()


def test_tables_that_inherit_are_noted(database18: Database) -> None:
    problems = find(
        database18,
        "create table t (id int primary key)",
        "create table heir (more text, primary key (id)) inherits (t)",
    )
    assert codes(problems) == set()
    assert one(problems, "inheritance").table == "public.t"


def test_row_level_security_that_hides_rows_from_the_role_is_a_warning(
    database18: Database,
) -> None:
    role = f"r_{secrets.token_hex(6)}"
    database18.execute(f"create role {role} login replication")
    dsn = database18.server.dsn(database18.name, user=role)
    try:
        problems = find(
            database18,
            "create table t (id int primary key)",
            "alter table t enable row level security",
            f"grant select on t to {role}",
            dsn=dsn,
        )
        problem = one(problems, "row_security")
        assert problem.severity is Severity.WARNING
        database18.execute(problem.fix)
        assert "row_security" not in {p.code for p in find(database18, dsn=dsn)}
    finally:
        database18.execute(f"drop owned by {role}")
        database18.execute(f"drop role {role}")


def test_what_is_left_out_is_named(database18: Database) -> None:
    problems = find(
        database18,
        "create table t (id int primary key)",
        "create unlogged table quick (id int primary key)",
        "create schema odd",
        'create unlogged table odd."The Second" (id int primary key)',
        "create materialized view seen as select 1",
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create foreign table far (id int) server s",
        publication="for all tables",
    )
    found = {
        p.what.partition(" are not")[0]: p.found for p in problems if p.code == "not_replicated"
    }
    assert found == {
        "unlogged tables": 'odd."The Second", quick',
        "materialized views": "seen",
        "foreign tables": "far",
    }


def test_a_publication_of_a_schema_takes_in_what_is_made_later(database18: Database) -> None:
    problems = find(
        database18, "create table t (id int primary key)", publication="for tables in schema public"
    )
    assert one(problems, "publication_open").severity is Severity.NOTE
    assert codes(problems) == set()
