"""Changes that need more than the last change of each key, and that Arrow still writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.target.result import WritePlan
from tests.spark.relations import Entry, delete, insert, make_relation, update
from tests.spark.small_lake import SmallLake
from tests.spark.table_files import find_result

T = make_relation("t", "k int4, v text, n numeric")
FIRST: list[Entry] = [insert(T, str(k), "a", "1.5") for k in range(1, 6)]
# Changes after the first rows, and what is left of keys and their `v`.
RARE: dict[str, tuple[list[list[Entry]], list[tuple[int, str | None]]]] = {
    "a value that was not sent": (
        [[update(T, "1", None, "2", unchanged=[1])]],
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")],
    ),
    "a row that moved": (
        [[update(T, "9", "b", "2", old=["1", None, None])]],
        [(2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "b")],
    ),
    "a row that moved with a value that was not sent": (
        [
            [update(T, "1", "c", "2")],
            [update(T, "9", None, "2", old=["1", None, None], unchanged=[1])],
            [update(T, "8", None, "2", old=["2", None, None], unchanged=[1])],
        ],
        [(3, "a"), (4, "a"), (5, "a"), (8, "a"), (9, "c")],
    ),
    "a key that came and went in one transaction": (
        [[insert(T, "9", "b", "2"), delete(T, "9", None, None)]],
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")],
    ),
}


@pytest.mark.parametrize("case", RARE)
def test_arrow_writes_rare_changes(spark: SparkSession, tmp_path: Path, case: str) -> None:
    transactions, left = RARE[case]
    small = SmallLake(spark, tmp_path)
    small.merge(FIRST)
    merged = find_result(small.merge(*transactions), T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE_FILES, None)
    assert small.rows(T, "k", "v") == left
