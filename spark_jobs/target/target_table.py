"""A table of the lake as it is before a merge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.rows import widen
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True)
class TargetTable:
    """A table at one version; Spark reads its rows, in a table schema, when they are needed."""

    session: SparkSession
    path: Path
    table: DeltaTable
    schema: TableSchema

    @cached_property
    def rows(self) -> DataFrame:
        """The rows, with the columns that the table schema adds to them."""
        return widen(read_rows(self.session, self.path, self.table), self.schema)
