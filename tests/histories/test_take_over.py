"""One capture follows another: after a drain, a server restart, a promotion, a recreated slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import PostgresServer
from tests.walgate_command import run_walgate


@pytest.fixture
def own_pipeline(
    private_postgres: Callable[..., PostgresServer], make_pipeline: Callable[..., Pipeline]
) -> Iterator[Pipeline]:
    """Lend a pipeline on a server of its own, which the test may stop."""
    server = private_postgres()
    pipeline = make_pipeline(server.create_database("shop"))
    pipeline.database.execute("create table orders (id bigserial primary key, note text)")
    yield pipeline
    pipeline.end()


def insert_rows(pipeline: Pipeline, count: int) -> None:
    """Insert rows, each in its own transaction."""
    for _ in range(count):
        pipeline.database.execute("insert into orders (note) values ('x')")


def test_a_capture_that_waited_for_the_slot_goes_on_where_the_other_ended(
    pipeline: Pipeline,
) -> None:
    pipeline.database.execute("create table orders (id bigserial primary key, note text)")
    first = pipeline.start_streaming()
    waiting = pipeline.start()
    asked = (
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and backend_type = 'walsender' and query like 'START_REPLICATION%'"
    )
    wait_for(
        lambda: pipeline.database.query(asked) == [(2,)],
        DEADLINE_S,
        "the second to ask for the slot",
    )
    # What is staged from here on lies past all that the second was told when it connected.
    insert_rows(pipeline, 5)
    pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(first)
    pipeline.wait_for_line(waiting, "capture started")
    insert_rows(pipeline, 5)
    pipeline.finish(waiting)
    pipeline.catch_up()
    assert pipeline.require_truth() == 10


def test_f32_a_server_that_restarts_is_waited_for(own_pipeline: Pipeline) -> None:
    server = own_pipeline.database.server
    child = own_pipeline.start_streaming()
    insert_rows(own_pipeline, 3)
    server.stop("immediate")
    own_pipeline.wait_for_line(child, "session ended")
    # A second try has failed too, so that the server was really away.
    wait_for(
        lambda: child.output().count("session ended") > 1 or not child.is_running,
        DEADLINE_S,
        "another try",
    )
    server.start()
    insert_rows(own_pipeline, 3)
    own_pipeline.wait_until_staged(own_pipeline.current_lsn())
    own_pipeline.finish(child)
    assert own_pipeline.require_truth() == 6


def test_f13_a_promoted_server_is_followed_for_good(own_pipeline: Pipeline) -> None:
    server = own_pipeline.database.server
    insert_rows(own_pipeline, 2)
    own_pipeline.catch_up()
    server.stop()
    (server.data_folder / "standby.signal").touch()
    server.start()
    assert server.query("postgres", "select pg_promote()") == [(True,)]
    for _ in range(3):
        insert_rows(own_pipeline, 2)
        own_pipeline.catch_up()
    assert own_pipeline.require_truth() == 8


@pytest.mark.parametrize("happens", ["dropped", "made again", "consumed by another"])
def test_f12_a_slot_that_no_longer_continues_staging_needs_a_person(
    pipeline: Pipeline, happens: str
) -> None:
    database, name = pipeline.database, [pipeline.slot]
    database.execute("create table orders (id bigserial primary key, note text)")
    insert_rows(pipeline, 2)
    pipeline.catch_up()
    held = pipeline.staged()
    insert_rows(pipeline, 2)
    if happens == "consumed by another":
        database.query("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", name)
    else:
        database.query("select pg_drop_replication_slot(%s)", name)
    if happens == "made again":
        database.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
    assert answer.exit_code == 4, answer
    assert pipeline.slot in answer.complaints[-1]
    assert pipeline.staged() == held
