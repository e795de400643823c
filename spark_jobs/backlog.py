"""What the log holds above a bound, told from the statistics of its files; none is opened.

A batch is one file or several, and files reach one after the other from end LSN to end LSN. How
many entries of a file are marks stands in its null count of `table`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from cdc_core.vocabulary import Lsn
from spark_jobs.lake import Bound, Lake, open_table
from spark_jobs.ledger import Cut, find_cut

# To open a file of the log costs a table what it takes to read some thousand entries of it.
_FEW_ENTRIES = 5_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """How far the log and the newest cut reach, and the entries of tables not merged yet.

    `entries` counts from the table that is furthest behind, halted ones aside; marks are left out.
    """

    staged: Bound | None
    cut: Bound | None
    entries: int


@dataclass(frozen=True, slots=True)
class _File:
    end: Bound
    entries: int
    marks: int


def read_backlog(lake: Lake) -> Backlog:
    """Say what a merge would find to do."""
    cut, staged = find_cut(lake), lake.read_staged(lake.read_epochs())
    low = None if cut is None else _find_low(cut)
    above = (file for file in _read_files(lake) if low is None or file.end > low)
    entries = sum(file.entries - file.marks for file in above)
    return Backlog(staged, None if cut is None else cut.bound, entries)


def choose_cut(lake: Lake, low: Bound | None, staged: Bound, round_rows: int) -> Bound:
    """The end of a transaction by which about `round_rows` entries above `low` have come."""
    entries = 0
    for file in sorted(_read_files(lake), key=lambda file: file.end):
        entries += file.entries if low is None or file.end > low else 0
        if entries >= round_rows:
            return min(file.end, staged)
    return staged


def is_scattered(lake: Lake, low: Bound | None, cut: Bound) -> bool:
    """Whether the log holds `(low, cut]` in small files, which cost more to open than to read."""
    files = [f for f in _read_files(lake) if (low is None or low < f.end) and f.end <= cut]
    return sum(file.entries for file in files) < _FEW_ENTRIES * len(files)


def _find_low(cut: Cut) -> Bound:
    """The bound through which every table that is not halted is merged."""
    followed = [bound for table, bound in cut.merged.items() if table not in cut.halted]
    return min([cut.bound, *followed])


def _read_files(lake: Lake) -> Iterator[_File]:
    log = open_table(lake.changes)
    if log is None:
        return
    for file in pa.table(log.get_add_actions(flatten=True)).to_pylist():
        entries = file["num_records"]
        # Files of marks alone have no least table, whether or not their marks were counted.
        marks = file.get("null_count.table") if file.get("min.table") is not None else entries
        yield _File(Bound(file["max.epoch"], Lsn(file["max.end_lsn"])), entries, marks or 0)
