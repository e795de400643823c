"""Every way of writing a table leaves the rows and the counts that Spark's fold defines."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import TableMergeResult, WritePlan
from tests.spark.plain_rows import read_json
from tests.spark.relations import (
    Entry,
    delete,
    insert,
    make_relation,
    read,
    sweep,
    truncate,
    update,
)
from tests.spark.small_lake import SmallLake

SEED = 20261125
T = make_relation("t", "k int4, v text, n numeric")
# The definition: Spark folds every change and writes the table whole.
BY_FOLD = replace(
    DEFAULT_LIMITS, rewrite_entries=0, small_table_bytes=1 << 40, unshared_reads=1 << 40
)
# Files stay apart, so that some of them are not touched.
APART = replace(DEFAULT_LIMITS, small_file_bytes=0, open_file_bytes=1, small_table_bytes=0)
WAYS: dict[WritePlan, MergeLimits] = {
    WritePlan.REWRITE_FILES: APART,
    WritePlan.MERGE: replace(APART, rewrite_entries=0, unshared_reads=1 << 40),
    WritePlan.REWRITE: replace(BY_FOLD, unshared_reads=1 << 40),
    WritePlan.APPEND: replace(APART, unshared_reads=3),
    WritePlan.MOVE_BOUND: APART,
}


class Keys:
    """The keys of a table, and random changes of its rows."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.keys: set[int] = set()
        self.next = 0

    def make(self, key: int) -> list[str | None]:
        rng = self.rng
        number = rng.choice([None, "1", "-2.5", str(rng.randrange(1000))])
        return [str(key), rng.choice([None, "", "a", "é" * 40, f"{rng.random()}"]), number]

    def add(self) -> int:
        """A key that is new: often the next one, else one far from the others."""
        self.next += 1
        key = self.next if self.rng.random() < 0.7 else self.rng.randrange(10**6, 10**9)
        self.keys.add(key)
        return key

    def change(self) -> list[Entry]:
        """One transaction of plain changes; no key comes and goes in it."""
        entries: list[Entry] = []
        for key in self.rng.sample(sorted(self.keys), min(len(self.keys), 4)):
            if self.rng.random() < 0.4:
                entries.append(delete(T, str(key), None, None))
                self.keys.discard(key)
            else:
                entries.append(update(T, *self.make(key)))
        entries += [insert(T, *self.make(self.add())) for _ in range(self.rng.randrange(4))]
        return entries or [insert(T, *self.make(self.add()))]

    def change_for(self, way: WritePlan) -> list[Entry]:
        """One transaction after which the limits of a way lead to it."""
        match way:
            case WritePlan.APPEND:
                return [read(T, *self.make(self.add())) for _ in range(5)]
            case WritePlan.MOVE_BOUND:
                return [sweep(T, start=16)]
            case WritePlan.REWRITE if self.rng.random() < 0.2:
                self.keys.clear()
                return [truncate(T), *self.change()]
            case _:
                return self.change()


def describe(merged: TableMergeResult) -> dict[str, Any]:
    counted = ("rows", "inserted", "updated", "deleted", "lossy", "version")
    return {name: getattr(merged, name) for name in counted}


# Three processes on two busy cores share the time.
@pytest.mark.timeout(900)
@pytest.mark.core
@pytest.mark.parametrize(
    "rounds", [10, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_every_way_leaves_what_the_fold_defines(
    spark: SparkSession, tmp_path: Path, rounds: int
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    rng = random.Random(SEED)
    keys = Keys(rng)
    one, defined = SmallLake(spark, tmp_path / "one"), SmallLake(spark, tmp_path / "defined")
    first = [insert(T, *keys.make(keys.add())) for _ in range(20)]
    one.merge(first)
    defined.merge(first, limits=BY_FOLD)
    taken: Counter[WritePlan] = Counter()
    # Each way as often as the others, in any order.
    ways = [*WAYS] * -(-rounds // len(WAYS))
    rng.shuffle(ways)
    # The driver and the tasks of a Spark job rewrite files by turns.
    driver_bytes = itertools.cycle([0, DEFAULT_LIMITS.driver_bytes])
    for way in ways:
        entries = keys.change_for(way)
        limits = WAYS[way]
        if way is WritePlan.REWRITE_FILES:
            limits = replace(limits, driver_bytes=next(driver_bytes))
        (done,) = one.merge(entries, limits=limits)
        (expected,) = defined.merge(entries, limits=BY_FOLD)
        merged = done.tables["public.t"]
        taken[merged.way] += 1
        assert merged.way is way
        assert describe(merged) == describe(expected.tables["public.t"])
        assert read_json(one, T) == read_json(defined, T)
    print(f"ways: {dict(taken)}")  # noqa: T201 - How often each was tried.
    assert taken == dict.fromkeys(WAYS, len(ways) // len(WAYS))
