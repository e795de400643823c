"""H14: the server was put back from a cold copy, and staging holds what it has lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.fix_pipeline import Pipeline
from tests.postgres_server import PostgresServer
from tests.truth import read_log
from tests.walgate_command import run_walgate


@pytest.fixture
def own_pipeline(
    private_postgres: Callable[..., PostgresServer], make_pipeline: Callable[..., Pipeline]
) -> Iterator[Pipeline]:
    """Lend a pipeline on a server of its own, with a little staged."""
    pipeline = make_pipeline(private_postgres().create_database("shop"))
    pipeline.database.execute("create table orders (id bigserial primary key, note text)")
    insert_rows(pipeline, 3)
    pipeline.catch_up()
    yield pipeline
    pipeline.end()


def insert_rows(pipeline: Pipeline, count: int) -> None:
    """Insert rows, each in its own transaction; the same rows make the same WAL."""
    for _ in range(count):
        pipeline.database.execute("insert into orders (note) values ('x')")


def copy_cold(server: PostgresServer) -> None:
    """Keep a copy of the stopped server's data."""
    server.stop()
    subprocess.run(
        ["cp", "-a", server.data_folder, server.data_folder.with_name("copy")], check=True
    )
    server.start()


def put_back(server: PostgresServer) -> None:
    """Give the server the data of the copy."""
    server.stop()
    server.data_folder.rename(server.data_folder.with_name("lost"))
    server.data_folder.with_name("copy").rename(server.data_folder)
    server.start()


def require_refusal(pipeline: Pipeline, said: str) -> None:
    """Fail unless capture ends for a person to look, with slot and log as they were."""
    held, slot = read_log(pipeline.root), pipeline.slot_facts()["confirmed"]
    for _ in range(2):
        answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
        assert answer.exit_code == 4, answer
        assert said in answer.complaints[-1]
    assert read_log(pipeline.root) == held
    assert pipeline.slot_facts()["confirmed"] == slot


@pytest.mark.parametrize("rewritten", [8, 40])
def test_history_14_other_commits_in_place_of_the_staged_ones_are_not_dropped(
    own_pipeline: Pipeline, rewritten: int
) -> None:
    server = own_pipeline.database.server
    copy_cold(server)
    insert_rows(own_pipeline, 8)
    own_pipeline.catch_up()
    put_back(server)
    insert_rows(own_pipeline, rewritten)
    # The same statements make the same WAL: positions and xids recur, only the time tells.
    server.execute("postgres", "create table filler as select generate_series(1, 3000) i")
    assert own_pipeline.current_lsn() > own_pipeline.staged()
    require_refusal(own_pipeline, "the server's history is not the one that was staged")


def test_history_14_a_server_that_lost_its_tail_and_wrote_elsewhere_is_refused(
    own_pipeline: Pipeline,
) -> None:
    server = own_pipeline.database.server
    copy_cold(server)
    insert_rows(own_pipeline, 8)
    own_pipeline.catch_up()
    put_back(server)
    server.execute("postgres", "create table filler as select generate_series(1, 3000) i")
    assert own_pipeline.current_lsn() > own_pipeline.staged()
    require_refusal(own_pipeline, "the server's history is not the one that was staged")


def test_history_14_a_server_that_only_lost_its_tail_is_refused(own_pipeline: Pipeline) -> None:
    server = own_pipeline.database.server
    copy_cold(server)
    insert_rows(own_pipeline, 200)
    own_pipeline.catch_up()
    put_back(server)
    assert own_pipeline.current_lsn() < own_pipeline.staged()
    require_refusal(own_pipeline, "it went back in time")


def test_f13_a_former_primary_is_refused_once_its_successor_was_followed(
    own_pipeline: Pipeline,
) -> None:
    server = own_pipeline.database.server
    copy_cold(server)
    server.stop()
    (server.data_folder / "standby.signal").touch()
    server.start()
    server.query("postgres", "select pg_promote()")
    own_pipeline.catch_up()
    put_back(server)
    server.execute("postgres", "create table filler as select generate_series(1, 30000) i")
    require_refusal(own_pipeline, "timeline")
