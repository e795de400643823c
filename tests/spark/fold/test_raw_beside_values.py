"""`_raw` beside a value that is there: how its entry comes, goes, and is carried."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.relations import insert, make_relation, update
from tests.spark.small_lake import SmallLake

OLD = make_relation("t", "k int4, n numeric, v text")
NEW = make_relation(
    "t", "k int4, n numeric, v text, plus numeric",
    plus={"missing_value": "7.0", "has_default": True},
)  # fmt: skip


def test_a_text_beside_its_value_comes_goes_and_is_carried(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = SmallLake(spark, tmp_path)
    lake.merge(
        [
            insert(OLD, "1", "1.50", "a"),
            insert(OLD, "2", "1.5", "b"),
            insert(OLD, "3", "2.0", "c"),
            insert(OLD, "4", "3.10", "d"),
            insert(OLD, "5", "4.00", "e"),
        ]
    )
    lake.merge(
        [
            update(NEW, "1", "1.5", "A", "8"),
            update(NEW, "2", "1.500", "B", "8"),
            update(NEW, "3", None, "C", "8", unchanged=[1]),
            update(NEW, "4", "NaN", "D", "8.0"),
        ]
    )
    half, two, four = Decimal("1.5"), Decimal(2), Decimal(4)
    seven, eight = Decimal(7), Decimal(8)
    assert lake.rows(NEW, "k", "n", "v", "plus", "_raw") == [
        (1, half, "A", eight, None),
        (2, half, "B", eight, {"n": "1.500"}),
        (3, two, "C", eight, {"n": "2.0"}),
        (4, None, "D", eight, {"n": "NaN", "plus": "8.0"}),
        (5, four, "e", seven, {"n": "4.00", "plus": "7.0"}),
    ]
