"""The files of the log, by what Delta knows of them; no file is opened.

A batch is one file or several, and each file continues at the end LSN of the file before it. The
null count of `table` is a file's number of marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from cdc_core.vocabulary import Lsn
from spark_jobs.lake import Bound, Lake, open_table
from spark_jobs.plain_files import can_read


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log: how many entries it has, how many of them are marks.

    `begin` and `end` are the least and the greatest end LSN of an entry.
    `tables` are the least and the greatest name of a table, None where that is not known.
    """

    name: str
    size: int
    entries: int
    marks: int
    begin: Bound | None
    end: Bound | None
    tables: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of the log at one version, in order."""

    folder: Path
    log: DeltaTable
    files: tuple[LogFile, ...]

    @classmethod
    def open(cls, lake: Lake) -> LogFiles | None:
        """The files of the newest version; None where there is no log."""
        log = open_table(lake.changes)
        if log is None:
            return None
        known = pa.table(log.get_add_actions(flatten=True)).to_pylist()
        files = sorted(map(_describe, known), key=lambda file: file.end or Bound(0, Lsn(0)))
        return cls(lake.changes, log, tuple(files))

    def list_reaching(
        self, low: Bound | None, high: Bound, table: str | None = None
    ) -> list[LogFile]:
        """The files that may hold entries of `(low, high]`, of a table if one is named."""
        return [
            file
            for file in self.files
            if _may_reach(file, low, high) and (table is None or _may_hold(file, table))
        ]

    def can_read(self, files: list[LogFile]) -> bool:
        """Whether files hold their entries as they are."""
        return can_read(self.folder, self.log, [file.name for file in files])


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of the log: its entries above a bound, if there is one, up to another."""

    log: LogFiles
    low: Bound | None
    high: Bound

    def up_to(self, high: Bound) -> LogRange:
        """The range as far as another bound."""
        return replace(self, high=high)

    def find_files(self, table: str | None = None) -> dict[Path, int] | None:
        """The files that may hold something of the range, of a table if named, with their sizes.

        None where a file does not hold its entries as they are.
        """
        files = self.log.list_reaching(self.low, self.high, table)
        if not self.log.can_read(files):
            return None
        return {self.log.folder / file.name: file.size for file in files}


def _describe(file: Mapping[str, Any]) -> LogFile:
    entries, least, most = file["num_records"], file.get("min.table"), file.get("max.table")
    # Files of marks alone have no least table, whether or not their marks were counted.
    marks = file.get("null_count.table") if least is not None else entries
    begin, end = (
        None
        if file.get(f"{end}.end_lsn") is None
        else Bound(file[f"{end}.epoch"], Lsn(file[f"{end}.end_lsn"]))
        for end in ("min", "max")
    )
    tables = None if least is None or most is None else (least, most)
    return LogFile(file["path"], file["size_bytes"], entries, marks or 0, begin, end, tables)


def _may_hold(file: LogFile, table: str) -> bool:
    return file.tables is None or file.tables[0] <= table <= file.tables[1]


def _may_reach(file: LogFile, low: Bound | None, high: Bound) -> bool:
    is_below = file.end is not None and low is not None and file.end <= low
    return not is_below and (file.begin is None or file.begin <= high)
