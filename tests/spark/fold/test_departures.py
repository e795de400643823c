"""A key departs in a transaction that also brought it a row: the table has no row of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan
from tests.spark.relations import Entry, delete, insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

KEY = make_relation("key", "k int4, v text")
WHOLE = make_relation("whole", "k int4, v text", identity="f")
BIG = make_relation("big", "k int4, v text")
FIRST = [insert(relation, k, "a") for relation in (KEY, WHOLE, BIG) for k in "12345"]
SECOND: list[Entry] = [
    # 1 and 2 go, come and go again, and 3 comes and goes twice; 4 goes to 6, comes and goes.
    delete(KEY, "1", None), insert(KEY, "1", "b"), delete(KEY, "1", None),
    update(KEY, "6", "a", old=["4", None]), insert(KEY, "4", "b"), delete(KEY, "4", None),
    delete(WHOLE, "2", "a"), insert(WHOLE, "2", "b"), delete(WHOLE, "2", "b"),
    *[delete(WHOLE, "3", "a"), insert(WHOLE, "3", "a")] * 2, delete(WHOLE, "3", "a"),
    # The value is still under the old key, in the target.
    update(BIG, "6", None, old=["4", None], unchanged=[1]),
    insert(BIG, "4", "b"), update(BIG, "7", "c", old=["4", None]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "way"),
    [(MERGE_ONLY, WritePlan.MERGE), (SPARK_ONLY, WritePlan.REWRITE)],
    ids=["merge", "rewrite"],
)
def test_a_key_that_came_and_departed_in_one_transaction_has_no_row(
    spark: SparkSession, tmp_path: Path, limits: MergeLimits, way: WritePlan
) -> None:
    small = SmallLake(spark, tmp_path, limits=limits)
    small.merge(FIRST)
    (done,) = small.merge(SECOND)
    assert {merged.way for merged in done.tables.values()} == {way}
    assert small.rows(KEY) == [(2, "a"), (3, "a"), (5, "a"), (6, "a")]
    assert small.rows(WHOLE) == [(1, "a"), (4, "a"), (5, "a")]
    assert small.rows(BIG) == [(1, "a"), (2, "a"), (3, "a"), (5, "a"), (6, "a"), (7, "c")]
    deleted = {table: merged.deleted for table, merged in done.tables.items()}
    assert deleted == {"public.key": 2, "public.whole": 2, "public.big": 1}
