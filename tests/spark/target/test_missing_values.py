"""Rows with holes are found without Spark, by what the table's files say of themselves."""

from __future__ import annotations

import json
import tracemalloc
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.settings import TableSettings
from cdc_core.vocabulary import Relation
from spark_jobs.fold.rows import table_fields
from spark_jobs.lake.lake import open_table
from spark_jobs.modes.current import CURRENT
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.target.missing_values import Hole, count_holes, find_holes, has_holes, sign
from spark_jobs.target.result import WritePlan
from tests.spark.relations import delete, insert, make_relation, read, update
from tests.spark.small_lake import MERGE_ONLY, SmallLake

MANY = 1000
PLAIN = make_relation("plain", "k int4, v text, big text")
# Above the columns that Delta keeps statistics of.
WIDE = make_relation("wide", "k bytea, big text, " + ", ".join(f"c{i} int4" for i in range(40)))
ODD = make_relation("odd", "k numeric, b bool, big text", key="k b")
EXACT = make_relation("exact", "k text, b bool, big text", key="b k")


def find(small: SmallLake, relation: Relation) -> list[Hole]:
    folder = small.lake.locate(relation.table)
    delta = open_table(folder)
    assert delta is not None
    found = find_holes(folder, delta, CURRENT, most=MANY)
    assert count_holes(folder, delta, CURRENT) == len(found)
    assert has_holes(folder, delta, CURRENT) == bool(found)
    return found


def test_rows_with_holes_are_found_by_key_and_position(spark: SparkSession, tmp_path: Path) -> None:
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
    small.limits = MERGE_ONLY
    (done,) = small.merge(
        [
            update(PLAIN, "8", "first", None, unchanged=[2]),
            update(WIDE, "\\xff01", None, *wide, unchanged=[1]),
            update(ODD, "2.50", "f", None, unchanged=[2]),
            update(EXACT, 'a "b"', "t", None, unchanged=[2]),
            update(PLAIN, "1", "known", None, unchanged=[2]),
        ],
        [update(PLAIN, "7", "second", None, unchanged=[2])],
    )
    assert {merged.way for merged in done.tables.values()} == {WritePlan.MERGE}
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
    monkeypatch.delattr(pq, "ParquetFile")
    assert find(small, PLAIN) == []


def test_the_oldest_rows_are_taken_from_files_of_any_writer(tmp_path: Path) -> None:
    """A key column of another file may be narrower, or its texts of another type of Arrow's."""
    relation = make_relation("t", "k int8, name text, big text", key="k name")
    for kind, text, numbers in (
        (pa.int64(), pa.string(), range(100, 0, -1)),
        (pa.int32(), pa.large_string(), range(200, 100, -1)),
    ):
        keys = [pa.array(numbers, kind), pa.array([f"n{n}" for n in numbers], text)]
        write_rows_with_holes(tmp_path, relation, keys, [*numbers])
    delta = DeltaTable(tmp_path)
    assert [hole.key for hole in find_holes(LocalPlace.of(tmp_path), delta, CURRENT, most=120)] == [
        (str(n), f"n{n}") for n in range(1, 121)
    ]
    assert count_holes(LocalPlace.of(tmp_path), delta, CURRENT) == 200


def test_what_many_holes_take_is_bounded_by_what_is_asked_for(tmp_path: Path) -> None:
    relation = make_relation("t", "k int8, big text")
    for part in range(3):
        numbers = pa.array(range(part * 20_000, (part + 1) * 20_000), pa.int64())
        write_rows_with_holes(tmp_path, relation, [numbers], numbers)
    delta = DeltaTable(tmp_path)
    tracemalloc.start()
    arrow = pa.total_allocated_bytes()
    try:
        assert count_holes(LocalPlace.of(tmp_path), delta, CURRENT) == 60_000
        assert has_holes(LocalPlace.of(tmp_path), delta, CURRENT)
        found = find_holes(LocalPlace.of(tmp_path), delta, CURRENT, most=100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [hole.key for hole in found] == [(str(number),) for number in range(100)]
    assert peak < 2 << 20, f"{peak >> 20} MB of Python objects"
    assert pa.total_allocated_bytes() - arrow < 2 << 20


def write_rows_with_holes(
    folder: Path, relation: Relation, keys: list[pa.Array], positions: list[int] | pa.Array
) -> None:
    """Add a file whose rows all lack their last column."""
    if not DeltaTable.is_deltatable(str(folder)):
        schema = StructType(table_fields(TableSchema.of(relation)))
        DeltaTable.create(folder, Schema.from_json(schema.json()))
    names = [column.name for column in relation.columns]
    number = pa.array(positions, pa.int64())
    count = len(number)
    holes = pa.array([[names[-1]]] * count, pa.list_(pa.string()))
    columns = dict(zip(names, [*keys, pa.nulls(count, pa.string())], strict=True)) | {
        "_epoch": pa.array([1] * count, pa.int32()),
        "_commit_lsn": number,
        "_seq": number,
        "_committed_at": pa.nulls(count, pa.timestamp("us", tz="UTC")),
        "_raw": pa.nulls(count, pa.map_(pa.string(), pa.string())),
        "_holes": holes,
    }
    file = folder / f"part-{uuid.uuid4()}.parquet"
    pq.write_table(pa.table(columns), file)
    size, stats = file.stat().st_size, json.dumps({"numRecords": count})
    action = AddAction(file.name, size, {}, 0, data_change=True, stats=stats)
    delta = DeltaTable(folder)
    delta.create_write_transaction([action], "append", delta.schema(), [])
