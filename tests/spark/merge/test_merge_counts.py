"""What a merge says it did to tables that it did not MERGE; of a MERGE, transcripts tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import TableMergeResult, WritePlan
from tests.spark.relations import Entry, delete, insert, make_relation, truncate, update
from tests.spark.small_lake import SPARK_ONLY, SmallLake

MIXED = make_relation("mixed", "k int4, v text, big text")
NEW = make_relation("new", "k numeric, v text")
CUT = make_relation("cut", "k int4, v text")
ADDED = make_relation("added", "k int4, v text")
WIDER = make_relation(
    "added", "k int4, v text, plus int4", plus={"missing_value": "7", "has_default": True}
)
GOES = make_relation("goes", "k int4")
BRIEF = make_relation("brief", "k int4, v text")

FIRST: list[Entry] = [
    *(insert(MIXED, str(k), "a", "long") for k in range(1, 11)),
    *(insert(CUT, str(k), "a") for k in range(1, 6)),
    *(insert(ADDED, str(k), "a") for k in range(1, 4)),
    *(insert(GOES, str(k)) for k in range(1, 4)),
    insert(BRIEF, "1", "a"),
]
SECOND: list[Entry] = [
    # Inserted 11; updated 1 twice, 2 in its position alone; 3 deleted, 4 deleted and made again.
    insert(MIXED, "11", "a", None),
    update(MIXED, "1", "b", None, unchanged=[2]),
    update(MIXED, "1", "c", None, unchanged=[2]),
    update(MIXED, "2", "a", "long"),
    delete(MIXED, "3", None, None),
    delete(MIXED, "4", None, None),
    insert(MIXED, "4", "again", None),
    # 5 moves to 12, which is new, and 6 to 3, which went; 13 is never seen.
    update(MIXED, "12", "d", None, old=["5", None, None], unchanged=[2]),
    update(MIXED, "3", "e", None, old=["6", None, None], unchanged=[2]),
    insert(MIXED, "13", "a", None),
    delete(MIXED, "13", None, None),
    insert(NEW, "1.50", "a"),
    insert(NEW, "2.50", "b"),
    delete(NEW, "2.50", None),
    # The TRUNCATE deletes all five, 1 too, which is there again; 6 is new, 7 does not last.
    update(CUT, "2", "b"),
    truncate(CUT),
    insert(CUT, "1", "b"),
    insert(CUT, "6", "b"),
    insert(CUT, "7", "b"),
    delete(CUT, "7", None),
    insert(WIDER, "4", "b", None),
    update(WIDER, "1", "b", "8"),
    *(delete(GOES, str(k)) for k in range(1, 4)),
    insert(BRIEF, "2", "a"),
    delete(BRIEF, "2", None),
]
# Rows, inserted, updated, deleted.
EXPECTED = {
    "public.mixed": (10, 2, 4, 2),
    "public.new": (1, 1, 0, 0),
    "public.cut": (2, 2, 0, 5),
    "public.added": (4, 1, 1, 0),
    "public.goes": (0, 0, 0, 3),
    "public.brief": (1, 0, 0, 0),
}


@pytest.mark.parametrize(
    ("limits", "by_arrow"),
    [(SPARK_ONLY, set[str]()), (DEFAULT_LIMITS, {"public.goes", "public.mixed", "public.brief"})],
    ids=["by_spark", "by_arrow_where_it_can"],
)
def test_a_merge_that_writes_a_table_anew_counts_the_rows_it_inserted_updated_and_deleted(
    spark: SparkSession, tmp_path: Path, limits: MergeLimits, by_arrow: set[str]
) -> None:
    small = SmallLake(spark, tmp_path, limits=limits)
    made = small.merge(FIRST)[0].tables
    assert tell(made["public.mixed"]) == (10, 10, 0, 0)
    done = small.merge(SECOND)[0].tables
    assert {table: tell(merged) for table, merged in done.items()} == EXPECTED
    ways = {table: merged.way for table, merged in done.items()}
    assert {table for table, way in ways.items() if way is WritePlan.REWRITE_FILES} == by_arrow
    assert WritePlan.MERGE not in ways.values()
    last = small.merge([insert(MIXED, "21", "a", None), update(MIXED, "1", "b", "c")])[0]
    assert tell(last.tables["public.mixed"]) == (11, 1, 1, 0)


def tell(merged: TableMergeResult) -> tuple[int, int, int, int]:
    return merged.rows, merged.inserted, merged.updated, merged.deleted
