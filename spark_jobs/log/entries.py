"""Filters log entries in Arrow tables by log range, and names unreadable files of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake.lake import Bound

# The position of an entry, and the row that it brings.
ROW_COLUMNS = [
    "epoch",
    "commit_lsn",
    "seq",
    "end_lsn",
    "committed_at",
    "table",
    "relation_version",
    "op",
    "values",
]


@contextmanager
def naming(file: LakePlace) -> Iterator[None]:
    """Run a block that reads a file of the log. Raises: LakeError with the file's name."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise LakeError(
            f"a file of the log cannot be read: {file} ({type(error).__name__})",
            fix="restore it from a copy of the lake, or begin a new lake under another root",
            retry=Retry.AFTER_FIX,
        ) from error


def is_inside(entries: pa.Table, low: Bound | None, high: Bound) -> pa.ChunkedArray:
    """Whether each entry is in `(low, high]`, by its end LSN."""
    end = [entries["epoch"], entries["end_lsn"]]
    inside = pc.invert(is_above(end, [high.epoch, int(high.lsn)]))
    if low is not None:
        inside = pc.and_(inside, is_above(end, [low.epoch, int(low.lsn)]))
    return inside


def is_above(columns: list[pa.ChunkedArray], numbers: list[int]) -> pa.ChunkedArray:
    """Whether the columns of each entry, compared one after the other, are above some numbers."""
    (column, *others), (number, *rest) = columns, numbers
    above = pc.greater(column, number)
    if not others:
        return above
    same = pc.equal(column, number)
    return pc.or_(above, pc.and_(same, is_above(others, rest)))


def may_hold_table(group: pq.RowGroupMetaData, table: str) -> bool:
    """Whether a row group may hold entries of a table, by its statistics. True without them."""
    columns = (group.column(index) for index in range(group.num_columns))
    (own,) = (column for column in columns if column.path_in_schema == "table")
    known = own.statistics
    if known is None or not known.has_min_max:
        return True
    return bool(known.min <= table <= known.max)
