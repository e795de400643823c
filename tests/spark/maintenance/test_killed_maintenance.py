"""Maintenance killed at each of its steps: nothing is lost, and the next one finishes the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.ledger import find_cut
from spark_jobs.log.files import LogFiles
from tests.spark.maintenance.maintained_lake import Keeper
from tests.spark.relations import insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SmallLake

CHILD = Path(__file__).with_name("maintain_child.py")
PROJECT = Path(__file__).parents[3]
T = make_relation("t", "k int4, v text")
ROUNDS = 11
# Of the log that nothing trims, because the newest cut is below it.
UNMERGED = 60
POINTS = (
    "after_cuts_copied",
    "after_cuts_dropped",
    "before_table_compaction",
    "after_file_removed:3",
    "before_tombstones",
    "between_cleanings:1",
    "before_log_trim",
    "before_log_compaction",
)


@pytest.fixture(scope="module")
def grown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    """A lake with many cuts, a table of many files, and a log of many files."""
    small = SmallLake(spark, tmp_path_factory.mktemp("grown"), limits=MERGE_ONLY)
    for key in range(ROUNDS):
        small.merge([insert(T, str(key), "old")])
    small.merge([update(T, "1", "new")])
    for key in range(UNMERGED):
        small.commit([insert(T, str(100 + key), "later")])
    return small


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=() if p in POINTS[::3] else pytest.mark.soak) for p in POINTS],
)
def test_a_maintenance_killed_at_any_step_is_finished_by_the_next(
    grown: SmallLake, tmp_path: Path, point: str
) -> None:
    lake = grown.copy_to(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CHILD), str(tmp_path)],
        cwd=PROJECT,
        env=os.environ | {"WALGATE_CRASH_AT": point, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout.decode(errors="replace")[-2000:]
    keeper = Keeper(lake.lake, tmp_path / "spool")
    require_same(grown, lake, keeper)
    keeper.maintain()
    keeper.tend()
    keeper.maintain()
    require_same(grown, lake, keeper)
    log = LogFiles.open(lake.lake)
    assert log is not None
    assert len(log.files) == 1, "trimmed up to the cut, and the rest is one file"
    lake.merge([update(T, "2", "last")])
    for _ in range(2):  # First the cut goes, then what only it named.
        keeper.maintain()
    # The newest cut no longer names a version from before the compaction.
    folder = lake.lake.locate(T.table)
    assert len([*folder.list_matching("*.parquet")]) < ROUNDS
    assert [*(folder / "_attempts").list_matching()] == []
    rows = dict(lake.rows(T))
    assert len(rows) == ROUNDS + UNMERGED
    assert (rows[1], rows[2], rows[3], rows[100]) == ("new", "last", "old", "later")


def require_same(grown: SmallLake, lake: SmallLake, keeper: Keeper) -> None:
    """The table at the newest cut and at the end of the log is the one of the untouched lake."""
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut == find_cut(grown.lake)
    for lsn in (int(cut.bound.lsn), lake.log.lsn):
        assert lake.plain(lake.at(T, lsn).rows, T) == grown.plain(grown.at(T, lsn).rows, T)
    since = int(cut.bound.lsn)
    found = keeper.read_transactions(since=since)
    assert found == sorted(set(found))
    assert len(found) >= UNMERGED
