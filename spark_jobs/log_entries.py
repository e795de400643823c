"""Entries of the log as Arrow has them: which of them stand where."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.lake import Bound


def is_inside(entries: pa.Table, low: Bound | None, high: Bound) -> pa.ChunkedArray:
    """Whether each entry stands in `(low, high]`, by its end LSN."""
    end = [entries["epoch"], entries["end_lsn"]]
    inside = pc.invert(is_above(end, [high.epoch, int(high.lsn)]))
    if low is not None:
        inside = pc.and_(inside, is_above(end, [low.epoch, int(low.lsn)]))
    return inside


def is_above(columns: list[pa.ChunkedArray], numbers: list[int]) -> pa.ChunkedArray:
    """Whether columns, compared one after the other, are above some numbers."""
    (column, *others), (number, *rest) = columns, numbers
    above = pc.greater(column, number)
    if not others:
        return above
    same = pc.equal(column, number)
    return pc.or_(above, pc.and_(same, is_above(others, rest)))
