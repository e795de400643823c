"""What a backfill brings and what its end removes, in each way that a table is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs import merge
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

T = make_relation("t", "k int4, v text")
MISSED = make_relation("missed", "k int4, v text")
EMPTY = make_relation("empty", "k int4, v text")
MERGED = make_relation("merged", "k int4, v text, big text")
CUT = make_relation("cut", "k int4, v text")

Rows = list[tuple[object, ...]]


@pytest.mark.parametrize("is_small", [True, False], ids=["written_anew", "merged"])
def test_a_backfill_repairs_a_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge([insert(MERGED, str(k), "lake", "long") for k in range(1, 9)])
    if not is_small:
        monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", 0)
    (start,) = small.commit([update(MERGED, "1", "begun", None, unchanged=[2])])
    reads: list[Entry] = [
        # 1 is dropped as stale: the log has it; 2 differs; 3 is equal; 4 and 5 are gone.
        read(MERGED, "2", "source", None),
        read(MERGED, "3", "lake", "long"),
        read(MERGED, "9", "never seen", None),
    ]
    during: list[Entry] = [
        insert(MERGED, "10", "during", None),
        update(MERGED, "6", "during", None, unchanged=[2]),
        # Older than the read of 9, which a later delete removes for good.
        delete(MERGED, "7", None, None),
    ]
    small.commit(reads, during, [delete(MERGED, "9", None, None)])
    (end,) = small.commit([sweep(MERGED, start=start)])
    at_end = small.at(MERGED, end)
    expected: Rows = [
        (1, "begun", "long"),
        (10, "during", None),
        (2, "source", None),
        (3, "lake", "long"),
        (6, "during", "long"),
    ]
    assert small.plain(at_end.rows, MERGED) == expected
    (done,) = small.merge()
    assert small.rows(MERGED) == expected
    told = done.tables["public.merged"]
    assert (told.rows, told.inserted, told.updated, told.deleted) == (5, 1, 4, 4)
    # What came before the sweep is older than nothing that comes after it.
    small.merge([insert(MERGED, "4", "again", None)])
    assert small.rows(MERGED, "k") == [(1,), (10,), (2,), (3,), (4,), (6,)]


def test_a_sweep_removes_what_only_the_same_range_brought(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path)
    (start,) = small.commit([insert(T, "1", "before"), insert(T, "2", "before")])
    small.merge(
        [read(T, "2", "source")],
        [sweep(T, start=start + 8)],
        [insert(T, "3", "after")],
        # A table of which nothing was ever said but that it is empty.
        [sweep(EMPTY, start=start)],
        [insert(CUT, "1", "a"), truncate(CUT), sweep(CUT, start=start)],
    )
    assert small.rows(T) == [(2, "source"), (3, "after")]
    assert small.rows(EMPTY) == small.rows(CUT) == []
