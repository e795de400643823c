"""Worker and capture killed at each step of a backfill, under load: equal at rest."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.backfill.folded_log import fold, read_changes, read_source
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.load import prepare, running_load
from tests.postgres_server import Database
from tests.walgate_command import run_walgate, walgate_command, walgate_environment

TABLES = ("public.churn", "public.pgbench_accounts", "public.scrap", "public.side")
OF_WORKER = (
    "after_backfill_begun",
    "after_chunk_read",
    "after_chunk_stored",
    "after_watermark",
    "before_sweep",
    "after_sweep",
)
OF_CAPTURE = ("before_delta_commit", "after_delta_commit", "after_flush")


def start_worker(
    pipeline: Pipeline, *options: str, tables: Sequence[str] = TABLES, **environment: str
) -> ChildProcess:
    """Start a backfill of tables by the command."""
    arguments = ("backfill", *tables, "--chunk-rows", "4000", *options)
    child = ChildProcess(
        walgate_command(*arguments, "--config", pipeline.folder / "walgate.toml"),
        log=pipeline.folder / f"worker-{len(pipeline.children)}.log",
        environment=walgate_environment(environment),
    )
    pipeline.children.append(child)
    return child


def read_backfill(pipeline: Pipeline) -> dict[str, Any]:
    """Give what `walgate status` says of the one backfill."""
    answer = run_walgate("status", "--json", folder=pipeline.folder)
    (backfill,) = json.loads(answer.stdout)["backfills"]
    found: dict[str, Any] = backfill
    return found


def backfill_with_crashes(
    pipeline: Pipeline, workers: Sequence[str], captures: Sequence[str]
) -> None:
    """Run a backfill to its end; each worker and each capture is killed at a point of its own."""
    to_kill = list(captures)
    capture = pipeline.start(**crash_at(to_kill))
    for point in workers:
        worker = start_worker(pipeline, WALGATE_CRASH_AT=point)
        while worker.is_running:
            capture = keep_alive(pipeline, capture, to_kill)
        assert worker.wait() == -9, worker.output()
    worker = start_worker(pipeline)

    def is_done() -> bool:
        nonlocal capture
        capture = keep_alive(pipeline, capture, to_kill)
        return not worker.is_running and not to_kill

    wait_for(is_done, DEADLINE_S, "the backfill to end")
    assert worker.wait() == 0, worker.output()
    pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(capture)


def crash_at(points: list[str]) -> dict[str, str]:
    return {"WALGATE_CRASH_AT": points[0]} if points else {}


def keep_alive(pipeline: Pipeline, capture: ChildProcess, to_kill: list[str]) -> ChildProcess:
    """Start the next capture where one was killed at its point, the first of those left."""
    if capture.is_running:
        return capture
    if capture.wait() == -9:
        to_kill.pop(0)
        # The server has yet to notice.
        wait_for(lambda: pipeline.slot_facts()["pid"] is None, DEADLINE_S, "the slot to be free")
    else:
        # While no capture ran, a worker began one of its own.
        assert "is active for PID" in capture.output(), capture.output()
    return pipeline.start(**crash_at(to_kill))


def check(
    database: Database, make_pipeline: Callable[..., Pipeline], folder: Path, seed: int
) -> None:
    rng = random.Random(seed)
    scripts = prepare(database, folder)
    database.execute("insert into churn select i, 0, 'old' from generate_series(1, 2200) i")
    database.execute("insert into scrap select i, 'old' from generate_series(1, 500) i")
    pipeline = make_pipeline(database)
    workers = [
        f"{point}:{1 if 'sweep' in point or 'begun' in point else rng.randint(1, 9)}"
        for point in rng.sample(OF_WORKER, 2)
    ]
    captures = [f"{rng.choice(OF_CAPTURE)}:{rng.randint(2, 12)}" for _ in range(2)]
    print("seed", seed, "workers", workers, "captures", captures)  # noqa: T201 - to run it again.
    with running_load(database, scripts, seed=seed, rate=100):
        backfill_with_crashes(pipeline, workers, captures)
    pipeline.catch_up()
    for table in TABLES:
        source = read_source(database, table)
        assert source, table
        assert fold(pipeline.root, table) == source, table
    assert pipeline.require_truth() > 0
    assert not list(pipeline.spool.glob("*-*"))


def test_what_is_staged_is_not_read_again(
    database18: Database, make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    prepare(database18, tmp_path)
    pipeline = make_pipeline(database18)
    capture = pipeline.start_streaming()
    accounts = ["public.pgbench_accounts"]
    killed = start_worker(
        pipeline, "--parallel", "1", tables=accounts, WALGATE_CRASH_AT="after_watermark:11"
    )
    assert killed.wait() == -9, killed.output()
    pipeline.wait_until_staged(pipeline.current_lsn())
    assert read_backfill(pipeline)["state"] == "interrupted"
    worker = start_worker(pipeline, tables=accounts)
    assert worker.wait() == 0, worker.output()
    pipeline.finish(capture)
    told = read_backfill(pipeline)
    assert (told["state"], told["table"]) == ("done", accounts[0])
    assert 0 < told["rows"] <= 100_000 == told["rows_estimated"]
    keys = [row["values"][0] for row in read_changes(pipeline.root, accounts[0], "read")]
    assert len(keys) == len(set(keys)) == 100_000
    assert "public.pgbench_accounts\t100000\t0" in worker.output()
    # Another run is another backfill, and repairs.
    again = start_worker(pipeline, tables=accounts)
    assert again.wait() == 0, again.output()
    assert len(read_changes(pipeline.root, accounts[0], "read")) == 200_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1))
def test_a_backfill_survives_crashes(
    database18: Database, make_pipeline: Callable[..., Pipeline], tmp_path: Path, seed: int
) -> None:
    check(database18, make_pipeline, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 23))
def test_a_backfill_survives_many_crashes(
    database: Database, make_pipeline: Callable[..., Pipeline], tmp_path: Path, seed: int
) -> None:
    check(database, make_pipeline, tmp_path, seed)
