from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.lake_layout import COMMITS, DELTA_LOG
from spark_jobs.lake.lake import Lake, find_bound, open_table
from spark_jobs.lake.ledger import find_cut
from spark_jobs.merge.rounds import merge_until
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from tests.lakes import locate_lake, on_disk
from tests.spark.log_writer import LogWriter
from tests.spark.recorded_log import RecordedLog, read_texts
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY
from tests.spark.source_model import SourceTable

CHILD = Path(__file__).with_name("merge_child.py")
PROJECT = Path(__file__).parents[3]
ONE_ROUND = 1_000_000
# Each with the limits that decide how tables are written.
KILLS = (
    ("before_merge_commit:2", MERGE_ONLY),
    ("after_merge_commit:1", MERGE_ONLY),
    ("before_cut:1", DEFAULT_LIMITS),
    ("before_files_committed:2", SPARK_ONLY),
    ("after_cut:1", DEFAULT_LIMITS),
)


def kill_merge(folder: Path, point: str, *, limits: MergeLimits) -> None:
    """Merge in a child that is killed at a named point."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CHILD), str(folder), json.dumps(asdict(limits))],
        cwd=PROJECT,
        env=os.environ | {"WALGATE_CRASH_AT": point, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout.decode(errors="replace")[-2000:]


@pytest.mark.core
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kills",
    [pytest.param(KILLS, marks=pytest.mark.soak, id="all"), pytest.param(KILLS[1::3], id="two")],
)
def test_a_merge_killed_at_any_point_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, kills: Sequence[tuple[str, MergeLimits]]
) -> None:
    seed = 7
    lake = Lake(locate_lake(tmp_path / "lake"))
    writer = LogWriter(lake)
    writer.begin_epoch(16)
    tables = [SourceTable("one", "d"), SourceTable("two", "f", deferrable=True)]
    log = RecordedLog(writer, random.Random(seed), tables)
    for point, limits in kills:
        # Each kill leaves work of its round, and the next finds more in the log.
        log.record(20, truncates=0.01)
        writer.commit(repeat=2)
        kill_merge(tmp_path, point, limits=limits)
    assert merge_until(spark, lake, round_rows=ONE_ROUND) == [], "the last kill came after the cut"
    cut = find_cut(lake)
    assert cut is not None
    for table in tables:
        relation = log.announce(table)
        path = lake.locate(relation.table)
        assert read_texts(spark.read.format("delta").load(str(path)), table) == table.truth()
        delta = open_table(path)
        assert delta is not None
        # One commit makes a table; each later one says itself how far the table has come.
        assert delta.version() <= len(kills)
        assert find_bound(delta, lake.read_epochs()) == cut.bound
        assert cut.versions[str(relation.table)] == delta.version()
        commits = [one.read_text() for one in (path / DELTA_LOG).list_matching(COMMITS)]
        files = [file.name for file in path.list_files() if file.name.endswith(".parquet")]
        left = [name for name in files if name not in "".join(commits)]
        assert left == [], "no file is left that no commit names"


@on_disk
def test_a_lock_left_by_a_killed_process_waits_for_its_jvm(tmp_path: Path) -> None:
    lake = Lake(locate_lake(tmp_path / "lake"))
    with subprocess.Popen(["sleep", "1000"]) as jvm:
        with lake.lock_table("public.t", jvm=jvm.pid):
            left = (tmp_path / "lake" / "locks" / "public~2Et").read_bytes()
        assert str(jvm.pid).encode() in left.split()
        (tmp_path / "lake" / "locks" / "public~2Et").write_bytes(left)
        waiter = subprocess.Popen(
            [sys.executable, "-c", WAIT, str(tmp_path)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
        )
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == b"trying\n"
        with pytest.raises(subprocess.TimeoutExpired):
            waiter.wait(timeout=1)
        jvm.kill()
        jvm.wait()
        assert waiter.stdout.readline() == b"locked\n"
        assert waiter.wait() == 0
        waiter.stdout.close()


WAIT = """
import sys
from cdc_core.lake_storage.local_place import LocalPlace
from spark_jobs.lake.lake import Lake
print("trying", flush=True)
with Lake(LocalPlace(sys.argv[1]) / "lake").lock_table("public.t", jvm=None):
    print("locked", flush=True)
"""
