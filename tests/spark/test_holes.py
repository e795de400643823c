"""Rows with holes are found without Spark, by what the table's files say of themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_core.settings import TableSettings
from cdc_core.vocabulary import Relation
from spark_jobs import merge
from spark_jobs.holes import Hole, find_holes, sign
from spark_jobs.lake import open_table
from tests.spark.relations import delete, insert, make_relation, read, update
from tests.spark.small_lake import SmallLake

PLAIN = make_relation("plain", "k int4, v text, big text")
# Above the columns that Delta keeps statistics of.
WIDE = make_relation("wide", "k bytea, big text, " + ", ".join(f"c{i} int4" for i in range(40)))
ODD = make_relation("odd", "k numeric, b bool, big text", key="k b")
EXACT = make_relation("exact", "k text, b bool, big text", key="b k")


def find(small: SmallLake, relation: Relation) -> list[Hole]:
    folder = small.lake.locate(relation.table)
    delta = open_table(folder)
    assert delta is not None
    return find_holes(folder, delta)


def test_rows_with_holes_are_found_by_key_and_position(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallLake(spark, tmp_path)
    # Some rows are deleted by vectors, others with their files.
    small.lake = replace(small.lake, rules={"public.plain": TableSettings(deletion_vectors=True)})
    wide = [None] * 40
    small.merge(
        [
            *(insert(PLAIN, str(k), "v", "long") for k in range(1, 6)),
            insert(WIDE, "\\x00", "long", *wide),
            insert(ODD, "1.50", "t", "long"),
            insert(EXACT, "it's", "f", "long"),
        ]
    )
    assert [find(small, relation) for relation in (PLAIN, WIDE, ODD, EXACT)] == [[]] * 4
    # From here on rows are merged into files, of which some rows are deleted.
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", 0)
    small.merge(
        [
            update(PLAIN, "8", "first", None, unchanged=[2]),
            update(WIDE, "\\xff01", None, *wide, unchanged=[1]),
            update(ODD, "2.50", "f", None, unchanged=[2]),
            update(EXACT, 'a "b"', "t", None, unchanged=[2]),
            update(PLAIN, "1", "known", None, unchanged=[2]),
        ],
        [update(PLAIN, "7", "second", None, unchanged=[2])],
    )
    first = find(small, PLAIN)
    assert [hole.key for hole in first] == [("8",), ("7",)]
    assert [hole.key for hole in find(small, WIDE)] == [("\\xff01",)]
    assert [hole.key for hole in find(small, ODD)] == [("2.50", "f")]
    assert [hole.key for hole in find(small, EXACT)] == [("t", 'a "b"')]
    small.merge([update(PLAIN, "7", "third", None, unchanged=[2]), delete(PLAIN, "8", None, None)])
    second = find(small, PLAIN)
    assert [hole.key for hole in second] == [("7",)]
    small.merge([read(PLAIN, "7", "third", "long")])
    assert find(small, PLAIN) == []
    assert len({sign(holes) for holes in (first, second, first[1:], [])}) == 4


def test_a_table_without_holes_is_not_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge([insert(PLAIN, "1", "v", "long")])
    monkeypatch.delattr(pq, "read_table")
    assert find(small, PLAIN) == []
