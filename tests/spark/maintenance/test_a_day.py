"""A day of a pipeline in minutes: its lake neither grows nor slows down, and reads as the source.

All times are a hundredth or less of a day's: a cut is kept for seconds in the place of minutes. So
the clocks of the storage and of the host are real.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import open_table
from spark_jobs.lake.ledger import find_oldest_bound
from spark_jobs.log.files import LogFiles
from spark_jobs.maintenance.cut_ledgers import read_cuts
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.query.stored import find_stored, read_stored
from tests.fix_spark import make_quick
from tests.local_lake import path_of
from tests.spark.maintenance.maintained_lake import Keeper
from tests.spark.relations import insert, make_relation, update
from tests.spark.small_lake import SmallLake

T, SMALL = make_relation("t", "k int4, v text"), make_relation("small", "k int4, v text")
KEYS = 500


def make_keeping(day_s: float) -> Keeping:
    """What is kept of a day that lasts so many seconds."""

    def scale(usual: timedelta) -> timedelta:
        return usual * (day_s / 86_400)

    usual = Keeping()
    return Keeping(
        *(scale(usual.retention / 14), scale(usual.grace), scale(usual.every_cut)),
        *(scale(usual.often / 4), scale(usual.often_interval), scale(usual.seldom_interval)),
    )


def timed(seconds: list[float], do: Callable[[], object]) -> None:
    began = time.perf_counter()
    do()
    seconds.append(time.perf_counter() - began)


def find_growth(seconds: list[float]) -> float:
    """The median of the last fifth, as a multiple of that of the second: the first warms up."""
    fifth = len(seconds) // 5
    return statistics.median(seconds[-fifth:]) / statistics.median(seconds[fifth : 2 * fifth])


@pytest.mark.parametrize(
    ("rounds", "commits", "day_s"),
    [
        pytest.param(30, 3, 20.0, id="sample"),
        pytest.param(
            5000, 4, 3000.0, id="day", marks=[pytest.mark.soak, pytest.mark.timeout(10_800)]
        ),
    ],
)
def test_a_lake_neither_grows_nor_slows_down_with_its_age(
    spark: SparkSession, tmp_path: Path, rounds: int, commits: int, day_s: float
) -> None:
    chance = random.Random(20261126)
    small = SmallLake(make_quick(spark), tmp_path)
    keeper, keeping = Keeper(small.lake, tmp_path / "spool"), make_keeping(day_s)
    truths: dict[int, dict[int, str]] = {}
    truth: dict[int, str] = {}
    merging, committing, opening = list[float](), list[float](), list[float]()
    small.merge([insert(SMALL, "1", "v")])
    for number in range(rounds):
        for _ in range(commits):
            key, value = chance.randrange(KEYS), str(number)
            entry = (update if key in truth else insert)(T, str(key), value)
            truth[key] = value
            timed(committing, partial(small.commit, [entry]))
            truths[small.log.lsn] = dict(truth)
        timed(merging, lambda: merge_until(small.spark, small.lake, round_rows=1_000_000))
        timed(opening, lambda: (LogFiles.open(small.lake), small.lake.read_epochs()))
        if number % 10 == 9:
            assert keeper.maintain(keeping).problems == ()
            keeper.tend(settled_s=day_s / 150, grace_s=day_s / 100)
    for _ in range(3):
        keeper.maintain(keeping)
    check_reads(small, truths, chance)
    kept = read_cuts(small.lake)
    files = sum(1 for file in path_of(small.lake.root).rglob("*") if file.is_file())
    print(  # noqa: T201 - The figures of the closing note.
        f"growth: commit {find_growth(committing):.2f}, round {find_growth(merging):.2f},"
        f" open {find_growth(opening):.2f}; {len(kept)} cuts of {rounds}, {files} files"
    )
    assert len(kept) < rounds * 0.75
    log = open_table(small.lake.changes)
    assert log is not None
    assert len(log.file_uris()) < rounds * commits * 0.75


def check_reads(small: SmallLake, truths: dict[int, dict[int, str]], chance: random.Random) -> None:
    """Read the table at kept cuts without Spark, and at some other LSNs with it."""
    oldest = find_oldest_bound(small.lake)
    assert oldest is not None
    readable = [lsn for lsn in truths if lsn >= oldest.lsn]
    cuts = {int(cut.bound.lsn) for cut in read_cuts(small.lake)}
    for lsn in cuts & truths.keys():
        stored = find_stored(small.lake, T.table, find_bound_at(small.lake, Lsn(lsn)))
        assert stored.opened is not None
        assert not stored.needs_fold
        rows = read_stored(small.lake, T.table, stored.opened).select(["k", "v"]).to_pylist()
        assert {row["k"]: row["v"] for row in rows} == truths[lsn]
    for lsn in chance.sample(readable, min(5, len(readable))):
        assert dict(small.plain(small.at(T, lsn).rows, T)) == truths[lsn]
