"""The tail of the log: the marks and sweeps of its newest commits, for waiting processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_layout import CHANGES
from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from cdc_core.staging.commits import Commits, CommitsGone
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, Operation, Position

_COLUMNS = ["epoch", "commit_lsn", "seq", "end_lsn", "op", "detail"]
_OPERATIONS = [Operation.MARK.value, Operation.SWEEP.value]


@dataclass(frozen=True, slots=True)
class Staged:
    """A mark or a sweep that is in the log, and its `detail`."""

    position: Position
    end_lsn: Lsn
    detail: str


def read_marks(root: LakePlace, since: Position) -> Iterator[Staged]:
    """The marks in the log from the commit LSN of a position on, in order. Raises: StagingError."""
    with staging_errors("read the log's marks"):
        log = open_delta(root / CHANGES).to_pyarrow_dataset()
        is_since = pc.field("commit_lsn") >= int(since.commit_lsn)
        is_mark = pc.field("op") == Operation.MARK.value
        is_own = pc.field("epoch") == since.epoch
        yield from _take(log.to_table(columns=_COLUMNS, filter=is_own & is_since & is_mark))


class Tail:
    """The marks and sweeps that reach the log from the creation of this object on, in order."""

    def __init__(self, root: LakePlace) -> None:
        """Begin after the newest commit; the log need not exist yet. Raises: StagingError."""
        with staging_errors("open the log"):
            self._commits = Commits(root / CHANGES)

    def read(self) -> Iterator[Staged]:
        """The marks and sweeps committed since the last call.

        Raises: StagingError; CommitsGone if this object must be made again.
        """
        with staging_errors("read the log's newest commits"):
            for path in self._commits.read_added():
                try:
                    rows = _read_rows(path)
                except FileNotFoundError:
                    # A commit may outlive its file: a reader of the newest version needs it.
                    raise CommitsGone(str(path)) from None
                yield from _take(rows)


def _read_rows(path: LakePlace) -> pa.Table:
    """The marks and sweeps of a file. If a row group has none, only its operations are read."""
    with open_input(path) as source, pq.ParquetFile(source, read_dictionary=["op"]) as file:
        groups = [
            index
            for index in range(file.num_row_groups)
            if _has_wanted(file.read_row_group(index, columns=["op"], use_threads=False))
        ]
        rows = file.read_row_groups(groups, columns=_COLUMNS, use_threads=False)
    return rows.filter(pc.field("op").cast(pa.string()).isin(_OPERATIONS))


def _has_wanted(group: pa.Table) -> bool:
    held = {op for chunk in group.column("op").chunks for op in chunk.dictionary.to_pylist()}
    return not held.isdisjoint(_OPERATIONS)


def _take(rows: pa.Table) -> Iterator[Staged]:
    order = [("commit_lsn", "ascending"), ("seq", "ascending")]
    for row in rows.sort_by(order).to_pylist():
        position = Position(row["epoch"], Lsn(row["commit_lsn"]), row["seq"])
        yield Staged(position, Lsn(row["end_lsn"]), row["detail"] or "")
