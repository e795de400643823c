"""A server that is shut down is not kept up by capture, and is found again when it is back.

A walsender that is told to stop waits until its client has confirmed all WAL. The staged LSN never
reaches the WAL that no transaction of ours is in, so capture must leave by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.postgres_server import PostgresServer

DEADLINE_S = 60


@pytest.mark.parametrize("version", [15, 18])
def test_f32_a_fast_shutdown_does_not_wait_for_capture(
    private_postgres: Callable[..., PostgresServer], tmp_path: Path, version: int
) -> None:
    server = private_postgres(version, wal_sender_timeout="0")
    database = server.create_database("shop")
    database.execute("create table t (id int primary key)")
    pipeline = Pipeline(database, tmp_path)
    capture = pipeline.start_streaming()
    database.execute("insert into t values (1)")
    database.execute("create table filler (id int)")

    server.stop("fast")  # Fails by its deadline if the walsender does not end.
    assert capture.is_running, capture.output()
    server.start()
    database.execute("insert into t values (2)")

    rows = "select count(*) from pg_replication_slots where slot_name = %s and active"
    wait_for(
        lambda: database.query(rows, [pipeline.slot]) == [(1,)], DEADLINE_S, "capture to return"
    )
    pipeline.finish(capture)
    pipeline.catch_up()
    assert pipeline.require_truth() == 2
