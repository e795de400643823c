"""The log range of a round: Arrow makes its summaries, and Spark reads its entries if needed."""

from __future__ import annotations

from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.lake.lake import Bound
from spark_jobs.log.backlog import is_scattered
from spark_jobs.log.files import LogFiles, LogRange
from spark_jobs.log.in_memory import LogInMemory
from spark_jobs.log.ranges import RangeSummary, summarize, summarize_entries, summarize_files
from spark_jobs.log.reading import read_log


class RoundLog:
    """The entries of `(low, high]`, of all tables or of one.

    If small files hold the entries of all tables, Spark keeps them, and opens each file once.
    """

    def __init__(
        self,
        session: SparkSession,
        files: LogFiles,
        low: Bound | None,
        high: Bound,
        *,
        table: str | None = None,
    ) -> None:
        """Choose the range, and read nothing yet."""
        self._session = session
        self._table = table
        self._kept: DataFrame | None = None
        self.range = LogRange(files, low, high)

    def read(self) -> DataFrame:
        """The entries as a Spark query."""
        return self._entries

    def close(self) -> None:
        """Free the entries that Spark has kept."""
        if self._kept is not None:
            self._kept.unpersist()

    def list_summaries(self, table: str) -> list[RangeSummary]:
        """The range summaries of a table."""
        return [summary for summary in self.summaries if summary.table == table]

    @cached_property
    def summaries(self) -> list[RangeSummary]:
        """The range summaries of all its tables."""
        low, high = self.range.low, self.range.high
        if low == high:
            return []
        files = self.range.find_files(self._table)
        if files is None:
            return summarize(self._entries)
        shared = LogInMemory(files, low, high).entries if self._table is None else None
        if shared is not None:
            return list(summarize_entries(shared))
        return summarize_files(files, low, high)

    @cached_property
    def _entries(self) -> DataFrame:
        files, low, high = self.range.log, self.range.low, self.range.high
        entries = read_log(self._session, files, low, high)
        if self._table is not None:
            return entries.where(F.col("table") == self._table)
        if low != high and is_scattered(files, low, high):
            self._kept = entries.persist(StorageLevel.MEMORY_AND_DISK)
        return entries
