"""Chooses how many rows a chunk has: about two seconds of reading or 16 MB, whichever is less.

Pure.
"""

from __future__ import annotations

AIM_S = 2.0
AIM_BYTES = 16 << 20
# A table without statistics may have rows of any size.
_FIRST_ROWS = 1000
_MAX_GROWTH = 4.0
# A chunk of twice the aim, in time or bytes, is too large.
_TOO_LARGE = 0.5


class ChunkSize:
    """The number of rows for the next chunk of one table, learned from the chunks before."""

    def __init__(self, most: int, *, row_bytes: float | None) -> None:
        """Start from `row_bytes`, the size of a row; None if unknown. `most` limits the rows."""
        self._most = most
        first = _FIRST_ROWS if row_bytes is None else int(AIM_BYTES / max(row_bytes, 1))
        self.rows = max(1, min(most, first))

    def learn(self, rows: int, *, size: int, seconds: float) -> None:
        """Adapt the number of rows to a chunk that was read: its rows, its bytes, its time."""
        if not rows:
            return
        room = min(AIM_S / max(seconds, 1e-3), AIM_BYTES / max(size, 1))
        # A chunk with fewer rows than allowed, as at a table's end, is no reason to grow. A chunk
        # that is only a little too large is no reason to shrink.
        if room <= _TOO_LARGE or (room > 1 and rows >= self.rows):
            wanted = int(min(rows * room, self.rows * _MAX_GROWTH))
            self.rows = max(1, min(self._most, wanted))
