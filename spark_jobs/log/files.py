"""Describes the files of the log by their statistics in Delta, without opening a file.

A batch is one file or several. Each file continues at the end LSN of the file before it. The null
count of the column `table` is a file's number of marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Lsn
from spark_jobs.delta.direct_parquet import can_read
from spark_jobs.lake.lake import Bound, Epoch, Lake, find_staged, find_trimmed, open_table

# To make a Python value of each statistic of each file would take most of the time.
_DESCRIBING = frozenset(
    {
        "path",
        "size_bytes",
        "num_records",
        "null_count.table",
        "min.log_time",
        *(f"{end}.{name}" for end in ("min", "max") for name in ("epoch", "end_lsn", "table")),
    }
)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log: how many entries it has, how many of them are marks.

    `begin` and `end` are the least and the greatest end LSN of an entry.
    `tables` are the least and the greatest name of a table; None if they are not known.
    `min_log_time` is at or below every log time in the file; None if it is not known.
    """

    name: str
    size: int
    entries: int
    marks: int
    begin: Bound | None
    end: Bound | None
    tables: tuple[str, str] | None
    min_log_time: datetime | None


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of the log at one version, in order.

    `trimmed` is the bound up to which the log lacks entries; None if it was never trimmed.
    """

    folder: LakePlace
    log: DeltaTable
    files: tuple[LogFile, ...]
    trimmed: Bound | None

    @classmethod
    def open(cls, lake: Lake) -> LogFiles | None:
        """Open the log at its newest version; None if it does not exist."""
        log = open_table(lake.changes)
        if log is None:
            return None
        known = pa.table(log.get_add_actions(flatten=True))
        wanted = [name for name in known.column_names if name in _DESCRIBING]
        rows = known.select(wanted).to_pylist()
        files = sorted(map(_describe, rows), key=lambda file: file.end or Bound(0, Lsn(0)))
        # delta-rs reads this from the commits, which go soon.
        return cls(lake.changes, log, tuple(files), find_trimmed(log))

    def find_staged(self, epochs: list[Epoch]) -> Bound | None:
        """How far the log reaches; None before anything was staged. Call it soon after `open`."""
        return find_staged(self.log, epochs)

    def list_reaching(
        self, low: Bound | None, high: Bound, table: str | None = None
    ) -> list[LogFile]:
        """List the files that may hold entries of `(low, high]`, or of one table in that range."""
        return [
            file
            for file in self.files
            if _may_reach(file, low, high) and (table is None or _may_hold(file, table))
        ]

    def can_read(self, files: list[LogFile]) -> bool:
        """Whether the entries of files can be read as Parquet, without Delta."""
        return can_read(self.folder, self.log, [file.name for file in files])


@dataclass(frozen=True, slots=True)
class LogRange:
    """A log range: the entries above `low` and up to `high`; all up to `high` if `low` is None."""

    log: LogFiles
    low: Bound | None
    high: Bound

    def up_to(self, high: Bound) -> LogRange:
        """Return the range from the same `low` up to another bound."""
        return replace(self, high=high)

    def find_files(self, table: str | None = None) -> dict[LakePlace, int] | None:
        """Find the files that may hold entries of the range, or of one table in it.

        Returns each file's size in bytes; None if a file cannot be read without Delta.
        """
        files = self.log.list_reaching(self.low, self.high, table)
        if not self.log.can_read(files):
            return None
        return {self.log.folder / file.name: file.size for file in files}


def _describe(file: Mapping[str, Any]) -> LogFile:
    entries, least, most = file["num_records"], file.get("min.table"), file.get("max.table")
    # A file with only marks has no least table, whether or not its NULLs were counted.
    marks = file.get("null_count.table") if least is not None else entries
    begin, end = (
        None
        if file.get(f"{end}.end_lsn") is None
        else Bound(file[f"{end}.epoch"], Lsn(file[f"{end}.end_lsn"]))
        for end in ("min", "max")
    )
    tables = None if least is None or most is None else (least, most)
    return LogFile(
        file["path"],
        file["size_bytes"],
        entries,
        marks or 0,
        begin,
        end,
        tables,
        file.get("min.log_time"),
    )


def _may_hold(file: LogFile, table: str) -> bool:
    return file.tables is None or file.tables[0] <= table <= file.tables[1]


def _may_reach(file: LogFile, low: Bound | None, high: Bound) -> bool:
    is_below = file.end is not None and low is not None and file.end <= low
    return not is_below and (file.begin is None or file.begin <= high)
