"""Changes that need more than the last change of each key, and that Arrow still writes."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.spark.relations import Entry, delete, insert, make_relation, update
from tests.spark.small_lake import SmallLake
from tests.spark.table_files import APART, find_result

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
    "a row that moved and changed in one transaction": (
        [
            [
                update(T, "9", None, "2", old=["1", None, None], unchanged=[1]),
                update(T, "9", None, "3", unchanged=[1]),
            ]
        ],
        [(2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "a")],
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


@pytest.mark.parametrize(
    ("unsent", "refusal", "left"),
    [
        # The text in `_raw` is of another column, which the change sends.
        (1, None, (1, "a", Decimal(2), None)),
        (
            2,
            "a value was not sent, and its row lacks values or keeps its text in `_raw`",
            (1, "b", Decimal("1.5"), {"n": "1.50"}),
        ),
    ],
)
def test_a_value_that_was_not_sent_is_taken_unless_raw_has_its_text(
    spark: SparkSession,
    tmp_path: Path,
    unsent: int,
    refusal: str | None,
    left: tuple[object, ...],
) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge([insert(T, "1", "a", "1.50")])
    texts = [None if i == unsent else text for i, text in enumerate(("1", "b", "2"))]
    merged = find_result(small.merge([update(T, *texts, unchanged=[unsent])]), T)
    assert merged.refusal == refusal
    assert small.rows(T, "k", "v", "n", "_raw") == [left]


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (
            replace(DEFAULT_LIMITS, carried_bytes=10),
            "the values that were not sent do not fit in memory",
        ),
        # Either of two files is smaller, but one task looks into both.
        (
            replace(APART, carried_file_bytes=3_500),
            "values that were not sent are in files of more than 3500 bytes",
        ),
        # No other portion rewrites more than the one that looks for the values.
        (
            replace(APART, carried_file_bytes=1),
            "files of more than 1 bytes have changed keys",
        ),
    ],
    ids=["values", "files", "a file"],
)
def test_many_values_that_were_not_sent_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, limits: MergeLimits, refusal: str
) -> None:
    small = SmallLake(spark, tmp_path, limits=limits)
    small.merge(FIRST)
    small.merge([insert(T, "6", "b", "1.5")])
    changes = [update(T, key, None, "2", unchanged=[1]) for key in ("1", "6")]
    merged = find_result(small.merge(changes), T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE, refusal)
    assert small.rows(T) == [
        (k, "b" if k == 6 else "a", Decimal(2 if k in {1, 6} else "1.5")) for k in range(1, 7)
    ]
