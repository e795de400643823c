"""A pipeline under load that is maintained twice at once, with a retention of seconds.

One maintenance and capture are killed at their steps, while merges, backfills and verifications go
on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import walgate
from cdc_core.errors import LakeError
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.log.files import LogFiles
from spark_jobs.merge.rounds import Round, merge_until
from tests.background import Background
from tests.end_to_end.pgbench_tables import KEYS, read_lake, read_source
from tests.fix_pipeline import Pipeline
from tests.load import prepare, running_load
from tests.postgres_server import Database
from tests.spark.maintenance import maintain_child
from tests.spark.maintenance.maintained_lake import SHORT, Keeper
from tests.walgate_command import REPOSITORY, run_walgate

SECONDS, TRIMS = 600, 3
# Crash points of maintenance. These tables have too few small files for a compaction.
POINTS = (
    "after_cuts_copied",
    "after_cuts_dropped",
    "after_file_removed:3",
    "between_cleanings:1",
)
BALANCES = {
    "pgbench_accounts": "abalance",
    "pgbench_tellers": "tbalance",
    "pgbench_branches": "bbalance",
}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_doubled_while_everything_that_may_go_goes(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    scripts = prepare(database18, tmp_path)
    pipeline = make_pipeline(database18)
    lake = Lake(pipeline.lake)
    answer = run_walgate("backfill", *(f"public.{t}" for t in KEYS), folder=pipeline.folder)
    assert answer.exit_code == 0, answer.stderr
    environment = {"WALGATE_LAKE__GRACE": "60s", "WALGATE_CAPTURE__BATCH_SECONDS": "0.1"}
    # By turns, capture dies when it is about to trim the log, and after it has trimmed it.
    dying = environment | {"WALGATE_CRASH_AT": "before_log_trim"}
    capture, is_dying = pipeline.start_streaming(**dying), True
    session = spark.newSession()
    trims: set[Bound] = set()
    compared: list[bool] = []

    def compare(_: Round) -> None:
        compared.append(compare_balances(pipeline.folder / "walgate.toml"))

    deadline = time.monotonic() + SECONDS
    with (
        running_load(database18, scripts, seed=20261126, rate=60),
        Background(partial(maintain_always, lake, pipeline.folder)),
        Background(partial(kill_maintenances, pipeline.folder)) as killing,
        Background(partial(backfill_and_verify, pipeline.folder)) as reading,
    ):
        while reading.is_working or killing.is_working or len(trims) < TRIMS:
            assert time.monotonic() < deadline, f"too late: trimmed {len(trims)} times"
            merge_until(session, lake, round_rows=20_000, on_round=compare)
            log = LogFiles.open(lake)
            assert log is not None
            if log.trimmed is not None and log.trimmed not in trims:
                trims.add(log.trimmed)
                capture.kill()
            if not capture.is_running:
                is_dying = not is_dying
                capture = pipeline.start_streaming(**(dying if is_dying else environment))
            if not killing.is_working:
                reading.is_over.set()
    capture.kill()
    assert sum(compared) > 20
    pipeline.catch_up()
    merge_until(session, lake, round_rows=2_000_000)
    for table, key in KEYS.items():
        assert read_lake(session, lake, table, key).equals(read_source(database18, table, key))


def maintain_always(lake: Lake, folder: Path, is_over: threading.Event) -> None:
    """Maintain a lake again and again."""
    keeper = Keeper(lake, folder / "no spool")
    while not is_over.is_set():
        keeper.maintain(SHORT)
        is_over.wait(0.5)


def kill_maintenances(folder: Path, is_over: threading.Event) -> None:
    """For each crash point, run a second maintenance until it dies there."""
    for point in POINTS:
        if not is_over.is_set():
            done = subprocess.run(
                [sys.executable, maintain_child.__file__, folder, "loop"],
                env=os.environ | {"WALGATE_CRASH_AT": point, "PYTHONPATH": str(REPOSITORY)},
                timeout=SECONDS,
                check=False,
            )
            assert done.returncode == -signal.SIGKILL, point


def backfill_and_verify(folder: Path, is_over: threading.Event) -> None:
    """Backfill a table and verify it, by turns, at least once."""
    table = f"public.{next(iter(KEYS))}"
    while True:
        answer = run_walgate("backfill", table, folder=folder, deadline_s=SECONDS)
        assert answer.exit_code == 0, answer
        # The load, the merges and two maintenances run on the same cores.
        answer = run_walgate("verify", "--json", table, folder=folder, deadline_s=SECONDS)
        assert answer.exit_code == 0, answer
        (found,) = json.loads(answer.stdout)["tables"]
        assert found["result"] == "equal", found
        if is_over.is_set():
            return


def compare_balances(config: Path) -> bool:
    """Read three tables at the newest cut: each transaction adds the same to all of them."""
    try:
        now = walgate.open(config).at("latest")
        tables = {name: now.table(f"public.{name}") for name in BALANCES}
    except LakeError:
        return False
    if any(table.needs_spark or table.incomplete for table in tables.values()):
        return False
    sums = {pc.sum(table.to_arrow()[BALANCES[name]]).as_py() or 0 for name, table in tables.items()}
    assert len(sums) == 1, sums
    return True
