"""H1 and H2: a source at which nothing happens, and a capture that starts again and again."""

from __future__ import annotations

import pytest

from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.truth import read_reached


@pytest.fixture
def filled(pipeline: Pipeline) -> Pipeline:
    pipeline.database.execute("create table orders (id bigserial primary key, note text)")
    pipeline.database.execute("insert into orders (note) values ('a')")
    return pipeline


def wait_until_confirmed(pipeline: Pipeline, lsn: int) -> None:
    """Wait until the slot has passed an LSN."""
    wait_for(lambda: pipeline.slot_facts()["confirmed"] >= lsn, DEADLINE_S, "the slot to move on")


def test_history_01_a_restart_stages_nothing_again(filled: Pipeline) -> None:
    for _ in range(3):
        filled.catch_up()
        assert filled.require_truth() == 1
        assert filled.slot_facts()["confirmed"] == filled.staged()


def test_history_01_neighbours_and_keepalives_never_put_the_slot_ahead_of_staging(
    filled: Pipeline,
) -> None:
    server = filled.database.server
    child = filled.start_streaming(WALGATE_CAPTURE__HEARTBEAT_SECONDS="200ms")
    filled.wait_until_staged(filled.current_lsn())
    seen = set()
    for _ in range(3):
        # Work of another database: the stream shows nothing of it, and the slot must move on.
        server.execute("postgres", "create table if not exists neighbour (note text)")
        server.execute(
            "postgres", "insert into neighbour select md5(i::text) from generate_series(1, 500) i"
        )
        wait_until_confirmed(filled, filled.current_lsn())
        seen.add(filled.slot_facts()["confirmed"])
    filled.finish(child)
    server.execute("postgres", "drop table neighbour")
    assert seen <= read_reached(filled.root)
    assert filled.slot_facts()["confirmed"] == filled.staged()
    assert filled.require_truth() == 1


def test_history_02_until_current_ends_on_a_database_where_nothing_happens(
    pipeline: Pipeline,
) -> None:
    pipeline.catch_up()
    reached = pipeline.staged()
    pipeline.catch_up()
    assert pipeline.staged() > reached
    assert pipeline.require_truth() == 0
