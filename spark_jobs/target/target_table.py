"""A table of the lake as it is before a merge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.rows import widen
from spark_jobs.modes.mode import Mode
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True)
class TargetTable:
    """A table of some mode at one version.

    Spark reads its rows, in a table schema, when they are needed.
    """

    session: SparkSession
    path: LakePlace
    table: DeltaTable
    schema: TableSchema
    mode: Mode

    @property
    def fields(self) -> list[T.StructField]:
        """The columns that the table has after a merge."""
        return self.mode.list_fields(self.schema)

    @cached_property
    def stored(self) -> DataFrame:
        """All rows that the table stores, with the columns that the table schema adds to them."""
        return widen(read_rows(self.session, self.path, self.table), self.schema)

    @cached_property
    def rows(self) -> DataFrame:
        """The present rows, without the mode's own columns."""
        return self.mode.select_present(self.stored)
