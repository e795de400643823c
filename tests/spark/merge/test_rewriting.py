"""When a table is written anew and when it is merged into."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.lake.lake import open_table
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan
from tests.spark.relations import Entry, insert, make_relation
from tests.spark.small_lake import SmallLake

ROWS = make_relation("rows", "k int4, v text")


def test_a_table_is_written_anew_when_enough_arrives_for_its_size(
    spark: SparkSession, tmp_path: Path
) -> None:
    limits = MergeLimits(small_table_bytes=5_000, small_table_rows=10, rewrite_entries=0)
    chance = random.Random(1)

    def rows(first: int, count: int) -> list[Entry]:
        keys = range(first, first + count)
        return [insert(ROWS, str(key), chance.randbytes(50).hex()) for key in keys]

    lake = SmallLake(spark, tmp_path, limits=limits)
    operations, ways = [], []
    # A table of some 10 to 30 kB: ten rows let 5 kB be written anew, two hundred let 100 kB.
    for first, count in ((0, 100), (100, 10), (200, 200)):
        (done,) = lake.merge(rows(first, count))
        ways.append(done.tables["public.rows"].way)
        table = open_table(lake.lake.locate(ROWS.table))
        assert table is not None
        operations.append(table.history(1)[0]["operation"])
    assert operations == ["WRITE", "MERGE", "WRITE"]
    assert ways == [WritePlan.REWRITE, WritePlan.MERGE, WritePlan.REWRITE]
    assert len(lake.rows(ROWS)) == 310
