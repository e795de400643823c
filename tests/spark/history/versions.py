"""The history of a small lake's table, as plain rows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from cdc_core.settings import TableSettings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, TableMode
from spark_jobs.history.files import list_history_files
from spark_jobs.lake.lake import Bound, open_table
from spark_jobs.query.versions_at import versions_at
from tests.spark.relations import (
    make_relation,
    mark,
    read,
    sweep,
)
from tests.spark.small_lake import SmallLake

HISTORY = TableSettings(modes=(TableMode.CURRENT, TableMode.HISTORY))
T = make_relation("t", "k int4, v text, big text")
VERSIONS = Target(T.table, TargetKind.HISTORY)
NAME = "history/public.t"
LIFE = ("_from_lsn", "_to_lsn", "_opened_by", "_closed_by")


def open_history(small: SmallLake, target: Target = VERSIONS) -> DataFrame:
    return small.spark.read.format("delta").load(small.lake.locate_target(target).uri)


def list_versions(
    small: SmallLake, *columns: str, rows: DataFrame | None = None
) -> list[tuple[Any, ...]]:
    """Some columns of the versions and their lives, by key and time."""
    found = open_history(small) if rows is None else rows
    ordered = found.orderBy("k", "_from_epoch", "_from_lsn")
    return [tuple(row) for row in ordered.select(*columns, *LIFE).collect()]


def list_at(small: SmallLake, lsn: int) -> DataFrame:
    reading = versions_at(small.spark, small.lake, VERSIONS, Bound(small.log.epoch, Lsn(lsn)))
    assert reading.halt is None
    return reading.rows


def closed_files(small: SmallLake) -> set[str]:
    table = open_table(small.lake.locate_target(VERSIONS))
    assert table is not None
    return {file.name for file in list_history_files(table) if not file.may_be_open}


def backfill(small: SmallLake, *rows: tuple[Any, ...]) -> None:
    """Stage a whole backfill: the reads of a relation's rows, and its sweep."""
    (start,) = small.commit([mark(T)])
    small.commit([read(*row) for row in rows])
    small.commit([sweep(rows[0][0], start=start)])
