"""A table at one LSN, as Arrow, polars or Spark."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_core.errors import ConfigurationError
from cdc_core.settings import Settings
from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.leases import Lease
from spark_jobs.query.stored import find_stored, read_stored
from walgate.spark_session import naming_spark_errors, open_session

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.query.as_of import TableReading


class TableWarning(UserWarning):
    """A table may lack rows at an LSN, or halted before it."""


class TableAt:
    """A table at one LSN.

    If the newest cut at or below the LSN already has every change up to the LSN, Arrow reads the
    rows. Otherwise Spark folds the changes since that cut, in a session of this process.
    """

    def __init__(
        self, settings: Settings, lake: Lake, table: TableName, at: Bound, lease: Lease
    ) -> None:
        """Users call `LakeAt.table`, which says what this raises."""
        self._settings, self._lake, self._table, self._at = settings, lake, table, at
        self._lease = lease
        self._stored = find_stored(lake, table, at)
        if self._stored.opened is not None and lease.bound != at:
            # It may be the version of a later cut than the one of the lease.
            lease.keep_version(table, self._stored.opened.version())
        # The table as Spark has read it last.
        self._reading: TableReading | None = None

    @property
    def name(self) -> str:
        """The name, as PostgreSQL quotes it."""
        return str(self._table)

    @property
    def needs_spark(self) -> bool:
        """Whether Spark must read the rows, because changes since the cut must be folded."""
        return self._stored.needs_fold

    @property
    def lsn(self) -> str:
        """The LSN of the lake, or the LSN at which the table halted.

        If `needs_spark`, this and `halted` begin to read by Spark.
        """
        if self.needs_spark or self._stored.low is None:
            return str(self._find_reading().through.lsn)
        return str(self._stored.low.lsn)

    @property
    def halted(self) -> str | None:
        """Why and where the table halted, and the fix; None if it did not halt."""
        halt = self._find_reading().halt if self.needs_spark else self._stored.halt
        if halt is None:
            return None
        reason, fix = halt.reason or "the reason is no longer known", halt.fix or "read a newer LSN"
        return f"halted at {self.lsn}: {reason}. Fix: {fix}"

    @property
    def incomplete(self) -> str | None:
        """Why the table may lack rows; None if it has all rows of its source."""
        found = self._stored.incomplete
        return None if found is None else f"may lack rows: {found.state}, {found.reason}"

    def __repr__(self) -> str:
        """Name and LSN."""
        return f"<walgate.TableAt {self.name} at {self._at.lsn}>"

    def to_arrow(self) -> pa.Table:
        """Read the rows into memory, in no order.

        Warns: TableWarning if the table may lack rows, or halted before the LSN.
        Raises: LakeError; if the rows need Spark, also what `to_spark` raises.
        """
        rows = self._read()
        self._warn()
        return rows

    def to_polars(self) -> pl.DataFrame:
        """The same for polars. Raises: ConfigurationError if polars is not installed."""
        try:
            module = importlib.import_module("polars")
        except ImportError as error:
            raise ConfigurationError(
                ["polars is not installed"],
                fix="install polars, or read the rows with to_arrow()",
            ) from error
        frame: pl.DataFrame = module.from_arrow(self._read())
        self._warn()
        return frame

    def to_spark(self, session: SparkSession | None = None) -> DataFrame:
        """The rows as a DataFrame of a session that has Delta, or of one that Walgate starts.

        Warns: TableWarning if the table may lack rows, or halted before the LSN.
        Raises: LakeError; WalgateError if Spark does not start or has ended; ConfigurationError
        without Java, or if this program has started Spark itself and gives no session.
        """
        if session is not None:
            self._reading = self._read_by(session)
        rows = self._find_reading().rows
        self._warn()
        return rows

    def _read(self) -> pa.Table:
        opened = self._stored.opened
        if opened is None or self.needs_spark:
            with naming_spark_errors(self.name):
                return self._find_reading().rows.toArrow()
        return read_stored(self._lake, self._table, opened)

    def _find_reading(self) -> TableReading:
        if self._reading is None:
            self._reading = self._read_by(open_session(self._settings))
        return self._reading

    def _read_by(self, session: SparkSession) -> TableReading:
        from spark_jobs.query.as_of import table_at  # noqa: PLC0415 - at a cut nothing needs it.

        with naming_spark_errors(self.name):
            return table_at(session, self._lake, self._table, self._at)

    def _warn(self) -> None:
        for flaw in (self.incomplete, self.halted):
            if flaw is not None:
                # The caller of the public method.
                warnings.warn(f"{self.name}: {flaw}", TableWarning, stacklevel=3)
