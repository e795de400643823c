"""A lake of a test's own: a log to write, merges, and tables as plain rows."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdc_core.vocabulary import Lsn, Relation
from spark_jobs.lake.lake import Bound, Lake, open_table
from spark_jobs.merge.rounds import Round, merge_until
from spark_jobs.query.as_of import TableReading, table_at
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from tests.lakes import copy_lake, locate_lake
from tests.spark.log_writer import LogWriter
from tests.spark.relations import Entry

ALL = 1_000_000
# Arrow rewrites no files, and Spark writes no table whole because it is small.
MERGE_ONLY = replace(DEFAULT_LIMITS, small_table_bytes=0, rewrite_entries=0)
# Arrow rewrites no files. Spark writes small tables whole.
SPARK_ONLY = replace(DEFAULT_LIMITS, rewrite_entries=0)


# The tasks of a Spark job rewrite files, as for large tables. By default, the driver rewrites the
# files of small tables, and all tables of tests are small.
IN_TASKS = replace(DEFAULT_LIMITS, driver_bytes=0)


class SmallLake:
    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        *,
        first_lsn: int = 16,
        limits: MergeLimits = IN_TASKS,
    ) -> None:
        self.spark = spark
        self.limits = limits
        self.lake = Lake(locate_lake(folder / "lake"))
        self.log = LogWriter(self.lake)
        self.log.begin_epoch(first_lsn)

    def copy_to(self, folder: Path) -> SmallLake:
        """A copy of this lake in a folder. Nobody may write to this lake at the same time."""
        copied = copy(self)
        copied.lake = Lake(locate_lake(folder / "lake"))
        copy_lake(self.lake.root, copied.lake.root)
        copied.log = self.log.copy_to(copied.lake)
        return copied

    def commit(self, *transactions: list[Entry]) -> list[int]:
        """Stage transactions in one Delta commit; their end LSNs."""
        ends = [self.log.add(entries) for entries in transactions]
        self.log.commit()
        return ends

    def merge(self, *transactions: list[Entry], **options: Any) -> list[Round]:
        """Stage transactions, if any, and merge, by the own limits if no others are given."""
        if transactions:
            self.commit(*transactions)
        chosen: dict[str, Any] = {"round_rows": ALL, "limits": self.limits} | options
        return merge_until(self.spark, self.lake, **chosen)

    def rows(self, relation: Relation, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of a table as it is now, sorted."""
        path = str(self.lake.locate(relation.table))
        return self.plain(self.spark.read.format("delta").load(path), relation, *columns)

    def at(self, relation: Relation, lsn: int, epoch: int = 0) -> TableReading:
        return table_at(
            self.spark, self.lake, relation.table, Bound(epoch or self.log.epoch, Lsn(lsn))
        )

    def plain(self, rows: DataFrame, relation: Relation, *columns: str) -> list[tuple[Any, ...]]:
        names = columns or [column.name for column in relation.columns]
        found = [tuple(row) for row in rows.select(*(f"`{n}`" for n in names)).collect()]
        return sorted(found, key=repr)

    def version(self, relation: Relation) -> int:
        delta = open_table(self.lake.locate(relation.table))
        assert delta is not None
        return int(delta.version())
