"""Worker, code server and both are killed under load: one writer afterwards, and every row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from orchestration.demo.demo import Run
from orchestration.demo.shop import import_archive
from orchestration.demo.stack import DemoOptions, Stack
from tests.deadline import wait_for
from tests.demo.running_demo import DEADLINE_S, make_quiet_show, running_shop
from tests.fix_dagster import find_worker
from tests.lakes import path_of
from tests.truth import read_staged, require_whole_commits

_SLOT = "select active_pid from pg_replication_slots where slot_name = 'walgate'"
_SENDERS = "select pid from pg_stat_replication"


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[Stack]:
    """Lend the demo's stack."""
    options = DemoOptions(tmp_path / "demo", rows=3_000, writers=3, per_second=30, seed=3)
    with running_shop(options) as stack:
        yield stack


def _query(stack: Stack, statement: str) -> list[tuple[int]]:
    with psycopg.connect(stack.servers.dsn, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def _find_worker(stack: Stack) -> psutil.Process:
    """Give the process that signed the newest replicate run."""
    dagster = stack.dagster.instance
    return wait_for(
        lambda: find_worker(dagster, "replicate"), DEADLINE_S, "a worker to sign its run"
    )


def _wait_until_streaming(stack: Stack) -> int:
    """Wait until the log grows; give the walsender, the only one."""
    before = read_staged(path_of(stack.lake.root))
    wait_for(lambda: read_staged(path_of(stack.lake.root)) != before, DEADLINE_S, "the log to grow")
    ((sender,),) = _query(stack, _SENDERS)
    assert _query(stack, _SLOT) == [(sender,)]
    return sender


@pytest.mark.soak
@pytest.mark.timeout(3 * DEADLINE_S)
def test_kills_under_load_leave_one_writer_and_every_row(
    start_demo: Stack, spark: SparkSession
) -> None:
    stack = start_demo
    run = Run(stack, spark.newSession(), make_quiet_show(), threading.Event(), seed=1)
    first = run.begin()
    worker = _find_worker(stack)
    _wait_until_streaming(stack)

    worker.kill()
    replaced = wait_for(
        lambda: (found := _find_worker(stack)) != worker and found, DEADLINE_S, "the next worker"
    )
    _wait_until_streaming(stack)

    with psycopg.connect(stack.servers.dsn, autocommit=True) as connection:
        import_archive(connection, rows=12_000)
    psutil.Process(stack.dagster.pids["code-server"]).kill()
    sender = _wait_until_streaming(stack)
    # The run outlives its server, and is not launched twice.
    assert _find_worker(stack) == replaced
    assert _wait_until_streaming(stack) == sender

    psutil.Process(stack.dagster.pids["code-server"]).kill()
    replaced.kill()
    wait_for(lambda: _find_worker(stack) != replaced, DEADLINE_S, "the worker after both")
    _wait_until_streaming(stack)

    verdict = run.prove(first, run.heal())
    assert verdict is not None, run.watch.breaches
    assert verdict.is_equal, verdict.comparisons
    assert verdict.healing.is_whole, verdict.healing
    assert len(verdict.comparisons) == 7
    assert len(_query(stack, _SENDERS)) == 1
    require_whole_commits(path_of(stack.lake.root))
