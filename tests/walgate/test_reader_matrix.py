"""The page "Reading": its matrix of readers, and its program that needs no Walgate."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

import walgate
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.settings import TableSettings
from cdc_core.vocabulary import Relation
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from tests.lakes import path_of
from tests.spark.relations import delete, insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake
from tests.walgate.configured_lake import open_lake, record_backfill

PAGE = Path(__file__).parent.parent.parent / "docs" / "reading.md"
ROWS = 40
ZONED = make_relation("zoned", "k int4, v text, at timestamptz, n numeric")
LOCAL = make_relation("local", "k int4, v text, at timestamp, n numeric")
VECTORS = make_relation("vectors", "k int4, v text, at timestamptz, n numeric")
KINDS = {
    "with `deletion_vectors = true`": VECTORS,
    "with a `timestamp` without time zone": LOCAL,
    "without these": ZONED,
}
AT = "2026-01-02 03:04:05.000006"
TIME = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - compared without a zone.
EXPECTED = [
    (k, *(("new", Decimal("2.50")) if k == 1 else ("old", Decimal("1.50"))), TIME)
    for k in range(ROWS)
    if k != 2
]
Row: TypeAlias = tuple[int, str, Decimal, datetime]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    """Lend a lake with a table of each kind; each has a changed and a deleted row."""
    lake = SmallLake(spark, tmp_path_factory.mktemp("matrix"), limits=MERGE_ONLY)
    rules = {str(VECTORS.table): TableSettings(deletion_vectors=True)}
    lake.lake = replace(lake.lake, rules=rules)
    times = {LOCAL: AT, ZONED: f"{AT}+00", VECTORS: f"{AT}+00"}
    lake.merge(
        [insert(t, str(k), "old", at, "1.50") for t, at in times.items() for k in range(ROWS)]
    )
    changed = [update(t, "1", "new", at, "2.50") for t, at in times.items()]
    lake.merge([*changed, *(delete(t, "2", None, None, None) for t in times)])
    return lake


def read_by_spark(lake: SmallLake, table: Relation) -> list[Row]:
    rows = lake.spark.read.format("delta").load(locate(lake, table)).toArrow()
    return list_rows(rows.to_pylist())


def read_by_walgate(lake: SmallLake, table: Relation) -> list[Row]:
    opened = open_lake(lake.lake.root).at().table(str(table.table))
    assert not opened.needs_spark
    with pytest.warns(walgate.TableWarning, match="may lack rows"):
        return list_rows(opened.to_arrow().to_pylist())


def read_by_polars(lake: SmallLake, table: Relation) -> list[Row]:
    return list_rows(pl.scan_delta(locate(lake, table)).collect().to_dicts())


def read_by_delta_rs(lake: SmallLake, table: Relation) -> list[Row]:
    return list_rows(DeltaTable(locate(lake, table)).to_pyarrow_table().to_pylist())


def read_by_pandas(lake: SmallLake, table: Relation) -> list[Row]:
    return list_rows(DeltaTable(locate(lake, table)).to_pandas().to_dict("records"))


def read_by_duckdb(lake: SmallLake, table: Relation) -> list[Row]:
    dataset = DeltaTable(locate(lake, table)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("stored", dataset)
        return list_rows(connection.execute("select * from stored").df().to_dict("records"))


READERS: dict[str, Callable[[SmallLake, Relation], list[Row]]] = {
    "Spark": read_by_spark,
    "walgate": read_by_walgate,
    "polars": read_by_polars,
    "delta-rs": read_by_delta_rs,
    "pandas": read_by_pandas,
    "DuckDB over Arrow": read_by_duckdb,
}


def locate(lake: SmallLake, table: Relation) -> str:
    return str(path_of(lake.lake.locate(table.table)))


def list_rows(rows: list[dict[Any, Any]]) -> list[Row]:
    return [(row["k"], row["v"], row["n"], row["at"].replace(tzinfo=None)) for row in rows]


def try_reader(reader: str, lake: SmallLake, table: Relation) -> str:
    try:
        rows = READERS[reader](lake, table)
    except DeltaProtocolError:
        return "no"
    assert sorted(rows) == EXPECTED, (reader, table.table)
    return "yes"


def test_each_reader_does_what_the_matrix_says(lake: SmallLake) -> None:
    lines = [f"| table | {' | '.join(READERS)} |", "|---|" + "---|" * len(READERS)]
    for kind, table in KINDS.items():
        results = [try_reader(reader, lake, table) for reader in READERS]
        lines.append(f"| {kind} | {' | '.join(results)} |")
    assert "\n".join(lines) in PAGE.read_text(), "\n".join(lines)


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, SPARK_ONLY], ids=["by Arrow", "by Spark"])
def test_a_filter_on_any_column_finds_its_rows(
    spark: SparkSession, tmp_path: Path, limits: MergeLimits
) -> None:
    filtered = make_relation("filtered", "k int4, v text, b bool, n numeric, z timestamptz")
    lake = SmallLake(spark, tmp_path, limits=limits)
    lake.merge([insert(filtered, "0", "old", "f", "0.5", f"{AT}+00")])
    lake.merge([insert(filtered, "1", "new", "t", "1.5", "2027-01-01 00:00:00+00")])
    dataset = DeltaTable(locate(lake, filtered)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("stored", dataset)
        for condition in (
            "k = 1",
            "v = 'new'",
            "b = true",
            "n > 1",
            "z > '2026-06-01 00:00:00+00'",
        ):
            rows = connection.sql(f"select k from stored where {condition}").fetchall()
            assert rows == [(1,)], condition


def test_the_program_of_the_page_reads_several_tables_at_the_newest_cut(
    lake: SmallLake, tmp_path: Path
) -> None:
    (code,) = re.findall(r"```python\n(import polars.*?)```", PAGE.read_text(), re.DOTALL)
    page: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec"), page)  # noqa: S102 - our own page.
    root = shutil.copytree(path_of(lake.lake.root), tmp_path / "lake")
    names = [str(ZONED.table), str(LOCAL.table)]
    with pytest.raises(LookupError, match="may lack rows"):
        page["read_cut"](str(root), names)
    with pytest.raises(LookupError, match=r"the cut has no table public\.other: it has public\."):
        page["read_cut"](str(root), ["public.other"])
    for table in (ZONED, LOCAL):
        record_backfill(LocalPlace.of(root), table, start=16, swept=32)
    own = SmallLake(lake.spark, tmp_path)
    own.log = lake.log
    own.log.lake = own.lake
    own.merge([insert(VECTORS, "77", "x", None, None)])
    for name, frame in page["read_cut"](str(root), names).items():
        assert sorted(list_rows(frame.collect().to_dicts())) == EXPECTED, name
