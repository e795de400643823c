"""F13: the primary is gone and its standby promoted, with a failover slot (18): capture follows it.

Other servers behind the address, restored ones and former primaries: tests/histories.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import Database, PostgresServer
from tests.standby import make_standby
from tests.truth import read_log
from tests.walgate_command import run_walgate

MakeServer = Callable[..., PostgresServer]


def add_standby(primary: PostgresServer, private_postgres: MakeServer) -> PostgresServer:
    """Give a standby that holds WAL back and can take slots over."""
    standby = make_standby(
        primary,
        private_postgres,
        18,
        primary_conninfo=primary.dsn("shop"),
        hot_standby_feedback="on",
        sync_replication_slots="on",
    )
    primary.configure(synchronized_standby_slots="standby")
    return standby


def make_failover_slot(pipeline: Pipeline) -> None:
    """Give the pipeline a slot that standbys take over; the truth's slot would hold nothing."""
    for slot in (pipeline.slot, pipeline.truth_slot):
        pipeline.database.query("select pg_drop_replication_slot(%s)", [slot])
    pipeline.database.query(
        "select pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)",
        [pipeline.slot],
    )


def take_over_slot(pipeline: Pipeline, standby: PostgresServer) -> None:
    """Have the standby's worker hold the slot for good, for which the primary must move on."""
    synced = "select slot_name from pg_replication_slots where synced and not temporary"

    def is_taken_over() -> bool:
        pipeline.database.query("select pg_log_standby_snapshot()")
        insert(pipeline.database, "c")
        pipeline.wait_until_staged(pipeline.current_lsn())
        return standby.query("shop", synced) == [(pipeline.slot,)]

    wait_for(is_taken_over, DEADLINE_S, "the standby to take the slot over")


def insert(database: Database, *notes: str) -> None:
    """Insert rows, each in its own transaction."""
    for note in notes:
        database.execute("insert into orders (note) values (%s)", [note])


def test_f13_a_promoted_standby_with_a_failover_slot_is_followed_without_loss(
    private_postgres: MakeServer, make_pipeline: Callable[..., Pipeline]
) -> None:
    primary = private_postgres(18)
    database = primary.create_database("shop")
    database.execute("create table orders (id bigserial primary key, note text)")
    pipeline = make_pipeline(database)
    make_failover_slot(pipeline)
    standby = add_standby(primary, private_postgres)
    ports = f"{primary.port},{standby.port}"
    pipeline.write_configuration(
        f"host=127.0.0.1,127.0.0.1 port={ports} dbname=shop user=postgres"
        " target_session_attrs=read-write"
    )
    child = pipeline.start_streaming()
    insert(database, "a", "b")

    take_over_slot(pipeline, standby)
    # Staged past what the standby knows of the slot: sent again, recognised and dropped.
    insert(database, "d", "e")
    pipeline.wait_until_staged(pipeline.current_lsn())
    primary.stop("immediate")
    pipeline.wait_for_line(child, "session ended")
    assert standby.query("shop", "select pg_promote()") == [(True,)]
    pipeline.database = Database(standby, "shop")
    insert(pipeline.database, "f", "g")
    pipeline.wait_until_staged(pipeline.current_lsn())
    assert "promotion followed" in child.output()
    pipeline.finish(child)
    staged = [change.values for held in read_log(pipeline.root) for change in held.changes]
    rows = pipeline.database.query("select id::text, note from orders order by orders.id")
    assert staged == rows


def test_f13_another_server_behind_the_address_is_refused_by_name(
    pipeline: Pipeline, private_postgres: MakeServer
) -> None:
    pipeline.database.execute("create table orders (id bigserial primary key, note text)")
    insert(pipeline.database, "a")
    pipeline.catch_up()
    held = read_log(pipeline.root)
    other = private_postgres(18).create_database(pipeline.database.name)
    other.execute("create publication walgate for all tables")
    other.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot])
    pipeline.write_configuration(other.dsn)
    answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
    assert answer.exit_code == 4, answer
    assert "system identifier" in answer.complaints[-1]
    assert "fix: " in answer.complaints[-1]
    assert read_log(pipeline.root) == held


@pytest.mark.parametrize("version", [pytest.param(15, marks=pytest.mark.soak), 18])
def test_f11_a_slot_lost_under_a_stopped_capture_is_named_and_nothing_is_made_in_its_place(
    private_postgres: MakeServer, make_pipeline: Callable[..., Pipeline], version: int
) -> None:
    server = private_postgres(
        version, max_slot_wal_keep_size="16MB", min_wal_size="32MB", max_wal_size="32MB"
    )
    database = server.create_database("shop")
    database.execute("create table orders (id bigserial primary key, note text)")
    pipeline = make_pipeline(database)
    insert(database, "a")
    pipeline.catch_up()
    held = read_log(pipeline.root)
    for _ in range(5):
        insert(database, "b")
        server.execute("postgres", "select pg_switch_wal()")
    server.execute("postgres", "checkpoint")
    slots = "select slot_name, wal_status from pg_replication_slots where slot_name = %s"
    assert database.query(slots, [pipeline.slot]) == [(pipeline.slot, "lost")]
    for _ in range(2):
        answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
        assert answer.exit_code == 4, answer
        complaint = answer.complaints[-1]
        assert f"slot {pipeline.slot} is lost: wal_status lost" in complaint
        assert ("wal_removed" in complaint) == (version >= 17)
        assert "fix: run `walgate recover`" in complaint
    assert read_log(pipeline.root) == held
    assert database.query(slots, [pipeline.slot]) == [(pipeline.slot, "lost")]
    shown = run_walgate("status", folder=pipeline.folder)
    assert f"{pipeline.slot} lost" in shown.stdout
