"""Who can read a table: every reader of Delta, unless the settings ask for deletion vectors.

delta-rs gives a table to Arrow, and so to pandas, Polars and DuckDB, only if it knows all of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from cdc_core.settings import TableSettings
from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import locate_lake, path_of
from tests.spark.relations import delete, insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

T = make_relation("t", "k int4, v text, at timestamp, n numeric")
ROWS = 40
AT = "2026-01-02 03:04:05.000006"
WITH_VECTORS = TableSettings(deletion_vectors=True)


def fill(lake: SmallLake) -> DeltaTable:
    """Insert rows, change one and delete another; the table as delta-rs has it."""
    lake.merge([insert(T, str(k), "old", AT, "1.50") for k in range(ROWS)])
    (done,) = lake.merge([update(T, "1", "new", AT, "NaN"), delete(T, "2", None, None, None)])
    way = WritePlan.MERGE if lake.limits == MERGE_ONLY else WritePlan.REWRITE
    assert done.tables["public.t"].way is way
    expected = [(k, "new" if k == 1 else "old") for k in range(ROWS) if k != 2]
    assert lake.rows(T, "k", "v") == sorted(expected, key=str)
    return DeltaTable(path_of(lake.lake.locate(T.table)))


@pytest.mark.parametrize("limits", [MERGE_ONLY, SPARK_ONLY], ids=["merged", "written_whole"])
def test_a_table_is_readable_by_all_that_arrow_gives_it_to(
    spark: SparkSession, tmp_path: Path, limits: MergeLimits
) -> None:
    table = fill(SmallLake(spark, tmp_path, limits=limits))
    dataset = table.to_pyarrow_dataset()
    assert pc.sum(dataset.to_table(columns=["k"])["k"]).as_py() == sum(range(ROWS)) - 2
    (changed,) = dataset.to_table(filter=ds.field("v") == "new").to_pylist()
    assert (changed["k"], str(changed["at"]), dict(changed["_raw"])) == (1, AT, {"n": "NaN"})
    assert table.to_pyarrow_table().num_rows == ROWS - 1


def test_a_table_without_local_times_asks_nothing_of_its_readers(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, plain = SmallLake(spark, tmp_path), make_relation("plain", "k int4, v text")
    lake.merge([insert(plain, "1", "a")])
    protocol = DeltaTable(path_of(lake.lake.locate(plain.table))).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_deletion_vectors_are_written_where_the_settings_ask_for_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = SmallLake(spark, tmp_path, limits=MERGE_ONLY)
    lake.lake = replace(lake.lake, rules={str(T.table): WITH_VECTORS})
    table = fill(lake)
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    assert vectors.num_rows == 1
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        table.to_pyarrow_dataset()


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ({}, []),
        ({"public.*": WITH_VECTORS}, [T.table]),
        ({"public.*": WITH_VECTORS, "public.t": TableSettings(deletion_vectors=False)}, []),
        # A section about something else hides nothing.
        ({"public.*": WITH_VECTORS, "public.t": TableSettings(exclude=("v",))}, [T.table]),
    ],
)
def test_the_most_exact_section_about_deletion_vectors_counts(
    tmp_path: Path, rules: dict[str, TableSettings], wanted: list[TableName]
) -> None:
    lake = Lake(locate_lake(tmp_path), rules=rules)
    assert [table for table in (T.table,) if lake.wants_deletion_vectors(table)] == wanted
