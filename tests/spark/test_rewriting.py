"""When a table is written anew and when it is merged into."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.lake import open_table
from spark_jobs.merge import merge
from tests.spark.relations import Entry, insert, make_relation
from tests.spark.small_lake import SmallLake

ROWS = make_relation("rows", "k int4, v text")


def test_a_table_is_written_anew_when_enough_arrives_for_its_size(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", 5_000)
    monkeypatch.setattr(merge, "_FEW_ROWS", 10)
    chance = random.Random(1)

    def rows(first: int, count: int) -> list[Entry]:
        keys = range(first, first + count)
        return [insert(ROWS, str(key), chance.randbytes(50).hex()) for key in keys]

    lake = SmallLake(spark, tmp_path)
    operations = []
    # A table of some 10 to 30 kB: ten rows let 5 kB be written anew, two hundred let 100 kB.
    for first, count in ((0, 100), (100, 10), (200, 200)):
        lake.merge(rows(first, count))
        table = open_table(lake.lake.locate(ROWS.table))
        assert table is not None
        operations.append(table.history(1)[0]["operation"])
    assert operations == ["WRITE", "MERGE", "WRITE"]
    assert len(lake.rows(ROWS)) == 310
