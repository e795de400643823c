"""Chooses which files of the log capture trims, and which it compacts. Pure, but for the listing.

A file is known by the end LSNs of its entries. Files of one batch may have parts of one
transaction, so what is below the end of a trimmed file may be incomplete in others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from cdc_core.vocabulary import Lsn

# A larger file is never compacted. A compacted file is at most about as large as twice this.
_MAX_ROWS = 100_000
_MAX_BYTES = 32 << 20
# A read opens each file. So compaction is worth its cost for many files, or for full ones.
_MAX_FILES = 500
_WORTH_FILES = 50
FEWEST_FILES = 4
_LISTED = (
    *("path", "size_bytes", "num_records", "modification_time"),
    *("min.epoch", "max.epoch", "min.end_lsn", "max.end_lsn"),
)


@dataclass(frozen=True, slots=True, order=True)
class LogPoint:
    """A place between two transactions of the log: an epoch and an end LSN."""

    epoch: int
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of the log, and the least and greatest end LSN of its entries."""

    name: str
    size: int
    rows: int
    committed_ms: int
    begin: LogPoint
    end: LogPoint


def list_staged_files(log: DeltaTable) -> list[StagedFile]:
    """The files of the log in order, without those that have no statistics of end LSNs."""
    known = pa.table(log.get_add_actions(flatten=True))
    rows = known.select([name for name in _LISTED if name in known.column_names]).to_pylist()
    files = [_describe(row) for row in rows if row.get("max.end_lsn") is not None]
    return sorted(files, key=lambda file: (file.end, file.begin))


def choose_trimmed(
    files: Sequence[StagedFile], *, floor: LogPoint, confirmed: LogPoint
) -> list[StagedFile]:
    """Choose the files that lie wholly at or below the floor and what the slot has confirmed.

    The newest file always stays: after a restart, capture compares what the server sends again
    with it.
    """
    limit = min(floor, confirmed)
    # A large transaction has several files, which all end where it ends.
    return [file for file in files if file.end <= limit and file.end < files[-1].end]


def choose_compacted(
    files: Sequence[StagedFile], *, before_ms: int, wide: Collection[str] = ()
) -> list[StagedFile]:
    """Choose consecutive small files to write as one; none if that is not worth its cost.

    Files that were committed at or after `before_ms` stay, because merges read them now. So do
    files of several epochs: the statistics of one file have one epoch. Files named in `wide` count
    as large.
    """
    group: list[StagedFile] = []
    for file in files:
        is_small = file.rows < _MAX_ROWS and file.size < _MAX_BYTES and file.name not in wide
        is_settled = file.committed_ms < before_ms and file.begin.epoch == file.end.epoch
        is_next = not group or group[-1].end.epoch == file.end.epoch
        if is_small and is_settled and is_next:
            group.append(file)
            if not _is_full(group):
                continue
        if _is_worth(group):
            return group
        group = []
    return group if _is_worth(group) else []


def _is_full(group: Sequence[StagedFile]) -> bool:
    rows, size = sum(file.rows for file in group), sum(file.size for file in group)
    return rows >= _MAX_ROWS or size >= _MAX_BYTES or len(group) >= _MAX_FILES


def _is_worth(group: Sequence[StagedFile]) -> bool:
    if _is_full(group):
        return len(group) >= FEWEST_FILES
    # Otherwise a few small files would have a large one written again.
    is_even = 2 * max((file.rows for file in group), default=0) <= sum(file.rows for file in group)
    return len(group) >= _WORTH_FILES and is_even


def _describe(row: dict[str, Any]) -> StagedFile:
    committed = row["modification_time"]
    return StagedFile(
        row["path"],
        row["size_bytes"],
        row["num_records"],
        committed if isinstance(committed, int) else int(committed.timestamp() * 1000),
        LogPoint(row["min.epoch"], Lsn(row["min.end_lsn"])),
        LogPoint(row["max.epoch"], Lsn(row["max.end_lsn"])),
    )
