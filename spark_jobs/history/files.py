"""Chooses the files of a history that a merge must read.

A file has open versions, closed ones, or both if another program has written it. The statistics of
the file say which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.direct_parquet import read_files
from spark_jobs.delta.file_bounds import is_reliable
from spark_jobs.fold.rows import match_names
from spark_jobs.history.reshaping import HistoryShape
from spark_jobs.history.turns import HistorySteps
from spark_jobs.history.versions import is_open
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A file of a history, with the least and greatest value of the first column of the key.

    `may_be_open` and `may_be_closed`: it has open or closed versions, or its statistics do not say.
    """

    name: str
    size: int
    may_be_open: bool
    may_be_closed: bool
    least: Any = None
    greatest: Any = None

    def may_hold(self, least: object, greatest: object) -> bool:
        """Whether the file may have a key whose first column is in a range."""
        ends = (self.least, self.greatest, least, greatest)
        if len({*map(type, ends)}) > 1 or not all(map(is_reliable, ends)):
            return True
        return bool(self.least <= greatest and self.greatest >= least)


def list_history_files(table: DeltaTable, first: str | None = None) -> list[HistoryFile]:
    """List the files of a history; `first` is the first column of the key."""
    return [
        HistoryFile(
            file["path"],
            file["size_bytes"],
            # Only open versions have no end.
            file.get("null_count._to_lsn") != 0,
            file.get("null_count._to_lsn") != file.get("num_records"),
            file.get(f"min.{first}"),
            file.get(f"max.{first}"),
        )
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


@dataclass(frozen=True, slots=True)
class HistoryFiles:
    """The files of a history at one version."""

    session: SparkSession
    path: LakePlace
    table: DeltaTable
    shape: HistoryShape

    def read(self, names: Sequence[str]) -> DataFrame:
        """The versions in some files, without columns that another program has added."""
        rows = read_files(self.session, self.path, self.table, [*names])
        return rows.select(*(f"`{field.name}`" for field in self.shape.fields))

    def measure(self, names: Sequence[str]) -> int:
        """The bytes of some files together."""
        own = {*names}
        return sum(file.size for file in list_history_files(self.table) if file.name in own)

    def find_touched(self, history: HistorySteps) -> list[str]:
        """The files with an open version that a plan touches."""
        first = match_names(history.schema)[0]
        files = [file for file in list_history_files(self.table, first) if file.may_be_open]
        # A TRUNCATE or a sweep may remove any row.
        if not history.removals.truncates and not history.removals.sweeps:
            files = self._choose_near(files, history)
        if not files:
            return []
        rows = self._read_named([file.name for file in files]).where(is_open())
        return self._list_files(history.mark_touched(rows).where("_touched"))

    def list_closed(self, history: HistorySteps) -> list[str]:
        """The files with closed versions that may have a key of a plan."""
        first = match_names(history.schema)[0]
        files = [file for file in list_history_files(self.table, first) if file.may_be_closed]
        return [file.name for file in self._choose_near(files, history)] if files else []

    def find_holding(
        self, names: Sequence[str], versions: DataFrame, schema: TableSchema
    ) -> list[str]:
        """Those of some files that have one of some versions."""
        keys = [*match_names(schema), "_from_epoch", "_from_lsn"]
        own = versions.select(*(f"`{key}`" for key in keys))
        return self._list_files(self._read_named(names).join(own, keys, "left_semi"))

    def _read_named(self, names: Sequence[str]) -> DataFrame:
        rows = read_files(self.session, self.path, self.table, [*names])
        return rows.withColumn("_file", F.col("_metadata.file_name"))

    def _list_files(self, rows: DataFrame) -> list[str]:
        """The files of some versions, by the names that the table has for them."""
        found = {row["_file"] for row in rows.select("_file").distinct().collect()}
        names = [file.name for file in list_history_files(self.table)]
        return [name for name in names if unquote(name).rpartition("/")[2] in found]

    def _choose_near(self, files: list[HistoryFile], history: HistorySteps) -> list[HistoryFile]:
        """Those of some files that may have a key of a plan."""
        own = history.names[0]
        ((least, greatest),) = history.steps.agg(F.min(own), F.max(own)).collect()
        return [file for file in files if file.may_hold(least, greatest)]
