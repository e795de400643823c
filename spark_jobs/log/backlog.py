"""How much of the log is left to merge, and how much of it one round takes."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Cut, find_cut
from spark_jobs.log.files import LogFile, LogFiles

# Entries of a file. For each table, to open a file costs as much as to read some thousand entries.
_FEW_ENTRIES = 5_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """How far the log and the newest cut reach, and how many entries are not merged yet.

    `entries` counts, in whole files, from the merged LSN of the table that is furthest behind.
    Halted tables do not set this LSN. Marks are not counted.
    """

    staged: Bound | None
    cut: Bound | None
    entries: int


def read_backlog(lake: Lake) -> Backlog:
    """Read how much a merge has to do."""
    cut, log = find_cut(lake), LogFiles.open(lake)
    low = None if cut is None else _find_low(cut)
    staged = None if log is None else log.find_staged(lake.read_epochs())
    above = [] if log is None else _list_above(log, low)
    entries = sum(file.entries - file.marks for file in above)
    return Backlog(staged, None if cut is None else cut.bound, entries)


def choose_cut(log: LogFiles, low: Bound | None, staged: Bound, round_rows: int) -> Bound:
    """Choose the end of a transaction that is about `round_rows` entries above `low`.

    The result is at most `staged`.
    """
    entries = 0
    for file in _list_above(log, low):
        entries += file.entries
        if entries >= round_rows and file.end is not None:
            return min(file.end, staged)
    return staged


def is_scattered(log: LogFiles, low: Bound | None, cut: Bound) -> bool:
    """Whether the log holds `(low, cut]` in small files, which cost more to open than to read."""
    files = [file for file in _list_above(log, low) if file.end is not None and file.end <= cut]
    return sum(file.entries for file in files) < _FEW_ENTRIES * len(files)


def _find_low(cut: Cut) -> Bound:
    """The bound through which every table that is not halted is merged."""
    followed = [bound for table, bound in cut.merged.items() if table not in cut.halted]
    return min([cut.bound, *followed])


def _list_above(log: LogFiles, low: Bound | None) -> list[LogFile]:
    return [file for file in log.files if low is None or file.end is None or file.end > low]
