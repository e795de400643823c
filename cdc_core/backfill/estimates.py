"""Estimates the rows, size and duration of a backfill before it begins."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from cdc_core.backfill.chunk_size import AIM_BYTES
from cdc_core.backfill.reading import MAX_BYTES
from cdc_core.backfill.request import BackfillRequest, open_reader, resolve

# This many rows show how fast the source sends rows and how wide they are.
_SAMPLE_ROWS = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of rows (by statistics), their bytes as texts, chunks, and seconds.

    `unswept` is why the backfill would not remove rows that the source no longer has; None if it
    would. `costly` says how much WAL the first reading may write; None if the slot has room.
    """

    rows: int
    size: int
    chunks: int
    seconds: float
    unswept: str | None
    costly: str | None


def estimate(wanted: BackfillRequest, *, parallel: int, rows_per_second: float | None) -> Estimate:
    """Estimate a backfill from the statistics of the source and a sample of the first rows.

    Raises: ConfigurationError, SourceError.
    """
    resolved = resolve(wanted)
    wanted = replace(wanted, scope=resolved.scope)
    reader = open_reader(wanted)
    try:
        with reader.lock():
            opened = reader.look()
            names = [column.name for column in opened.relation.columns]
            concealment = wanted.conceal(opened.relation)
            if concealment is not None:
                kept = {
                    column.name for column in concealment.conceal_relation(opened.relation).columns
                }
                names = [name for name in names if name in kept]
            high = opened.find_boundary(None, None, _SAMPLE_ROWS)
            began = time.monotonic()
            read, is_all = opened.read_rows(names, low=None, high=high, most_bytes=MAX_BYTES)
            seconds = time.monotonic() - began
    finally:
        reader.close()
    seen, size = len(read), read.nbytes
    rows = seen if high is None and is_all else max(resolved.rows_estimated, seen)
    if not seen:
        return Estimate(0, 0, 1, 0.0, resolved.unswept, resolved.costly)
    width = size / seen
    per_chunk = max(1, min(wanted.chunk_rows, int(AIM_BYTES / max(width, 1))))
    rate = parallel * seen / max(seconds, 1e-3)
    if rows_per_second is not None:
        rate = min(rate, rows_per_second)
    size, chunks = int(rows * width), -(-rows // per_chunk)
    return Estimate(rows, size, chunks, rows / rate, resolved.unswept, resolved.costly)
