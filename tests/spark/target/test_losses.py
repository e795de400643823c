"""The counts of values that `_raw` alone holds: kept up by each merge, never counted anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.fold.plan import read_schema
from spark_jobs.lake.lake import open_table, read_losses
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.target import losses
from spark_jobs.target.result import WritePlan
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
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

T = make_relation("t", "k int4, d date, n numeric")
WIDER = make_relation(
    "t",
    "k int4, d date, n numeric, e date",
    e={"missing_value": "infinity", "has_default": True},
)
WIDEST = make_relation(
    "t",
    "k int4, d date, n numeric, e date, f date",
    e={"missing_value": "infinity", "has_default": True},
)
CLEAN = make_relation("clean", "k int4, d date, v text")
FAR = "infinity"

# Transactions merged together, and the counts that they leave.
STEPS: list[tuple[str, list[list[Entry]], dict[str, int]]] = [
    ("first rows; what is kept beside its value is not lost",
     [[*(insert(T, str(k), FAR, "NaN") for k in range(1, 9)),
       insert(T, "9", "2024-01-01", "1.50")]],
     {"d": 8, "n": 8}),
    ("overwritten, deleted, new",
     [[update(T, "1", "2024-01-01", "1"), update(T, "2", FAR, "1"), delete(T, "3", None, None),
       insert(T, "10", FAR, None)]], {"d": 7, "n": 5}),
    ("not sent, so still the target's; came and went",
     [[update(T, "4", None, "2", unchanged=[1]),
       update(T, "5", "2024-01-01", None, unchanged=[2]), insert(T, "13", FAR, "NaN")],
      [delete(T, "13", None, None)]], {"d": 6, "n": 4}),
    ("moved to another key, not sent, and sent",
     [[update(T, "11", None, None, old=["4", None, None], unchanged=[1]),
       update(T, "12", FAR, "NaN", old=["6", None, None])]], {"d": 6, "n": 4}),
    ("a column whose default older rows have", [[insert(WIDER, "14", None, None, "2024-01-01")]],
     {"d": 6, "n": 4, "e": 9}),
    ("a column that older rows lack", [[update(WIDEST, "1", None, "1", None, FAR)]],
     {"d": 6, "n": 4, "e": 8, "f": 1}),
    ("TRUNCATE", [[truncate(WIDEST), insert(WIDEST, "1", FAR, None, None, None)]],
     {"d": 1, "n": 0, "e": 0, "f": 0}),
    ("read again", [[read(WIDEST, "1", FAR, "NaN", None, None),
                     read(WIDEST, "2", FAR, None, None, None)]],
     {"d": 2, "n": 1, "e": 0, "f": 0}),
    ("swept", [[insert(WIDEST, "3", FAR, None, None, None)], [sweep(WIDEST, start=1 << 40)]],
     {"d": 0, "n": 0, "e": 0, "f": 0}),
]  # fmt: skip


@pytest.mark.soak
def test_the_counts_of_lost_values_are_those_of_the_table_after_each_merge(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = SmallLake(spark, tmp_path)
    for number, (what, transactions, expected) in enumerate(STEPS):
        # By writing the table anew and by a MERGE, in turn.
        is_whole = number % 2 == 0
        (done,) = lake.merge(*transactions, limits=SPARK_ONLY if is_whole else MERGE_ONLY)
        assert done.halted == {}
        way = done.tables["public.t"].way
        assert way is (WritePlan.REWRITE if is_whole else WritePlan.MERGE), what
        found = done.tables["public.t"].lossy
        assert {name: n for name, n in found.items() if n} == count_anew(lake), what
        assert found == expected, what
        table = open_table(lake.lake.locate(T.table))
        assert table is not None
        assert read_losses(table) == found, "and the commit tells them"
        newest = transactions[-1][-1][0]
        assert read_schema(table).names == TableSchema.of(newest).names, (
            "the table knows its columns"
        )


def count_anew(lake: SmallLake) -> dict[str, int]:
    counts: dict[str, int] = {}
    frame = lake.spark.read.format("delta").load(str(lake.lake.locate(T.table)))
    for row in frame.collect():
        for name in row["_raw"] or ():
            counts[name] = counts.get(name, 0) + (row[name] is None)
    return {name: count for name, count in counts.items() if count}


def test_a_table_that_lost_nothing_is_not_looked_at(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = SmallLake(spark, tmp_path, limits=SPARK_ONLY)
    counted: list[str] = []
    count: Callable[..., object] = losses._count

    def count_and_tell(*arguments: object) -> object:
        counted.append("counted")
        return count(*arguments)

    monkeypatch.setattr(losses, "_count", count_and_tell)
    lake.merge([insert(CLEAN, "1", "2024-01-01", "a")])
    lake.merge([update(CLEAN, "1", "2025-01-01", "b"), insert(CLEAN, "2", None, "c")])
    assert counted == []
    lake.limits = replace(SPARK_ONLY, unshared_reads=1)
    for more in ([], [truncate(CLEAN)]):
        (done,) = lake.merge([*more, read(CLEAN, "3", "2024-01-01", "a")])
        assert done.tables["public.clean"].way is WritePlan.APPEND
    assert counted == [], "nor rows whose files say that they lost nothing"
    lake.merge([insert(CLEAN, "4", FAR, "c")])
    assert counted == ["counted"], "the rows that came, not the table"
