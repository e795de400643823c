"""A table of the lake as it is before a merge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.plan import has_table_schema, read_schema
from spark_jobs.fold.reshaping import reshape_rows
from spark_jobs.fold.rows import widen
from spark_jobs.modes.mode import Mode
from spark_jobs.modes.registry import find_mode
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
        """All rows that the table has in its mode, with the columns that the table schema adds."""
        rows = read_rows(self.session, self.path, self.table)
        return widen(self.mode.adopt(rows, find_mode(self.table)), self.schema)

    @cached_property
    def reshaped(self) -> DataFrame | None:
        """All rows of a table that is built again, in the new table schema.

        None if another writer has replaced the table, or if the source's table has another key.
        """
        if not has_table_schema(self.table):
            return None
        rows = read_rows(self.session, self.path, self.table)
        adopted = self.mode.adopt(rows, find_mode(self.table))
        return reshape_rows(adopted, read_schema(self.table), self.schema)

    @cached_property
    def rows(self) -> DataFrame:
        """The present rows, without the mode's own columns."""
        return self.mode.select_present(self.stored)
