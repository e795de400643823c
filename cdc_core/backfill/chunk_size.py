"""How many rows of a table make a chunk: as many as are read in about two seconds and 16 MB.

Pure.
"""

from __future__ import annotations

AIM_S = 2.0
AIM_BYTES = 16 << 20
# A table without statistics may have rows of any size.
_FIRST_ROWS = 1000
_MOST_GROWTH = 4.0
# A chunk of twice the aim, in time or bytes, is too large.
_TOO_LARGE = 0.5


class ChunkSize:
    """Rows of a chunk of one table, learned from those that were read."""

    def __init__(self, most: int, *, row_bytes: float | None) -> None:
        """`most` are never exceeded; `row_bytes` is what is known of its rows, None if nothing."""
        self._most = most
        first = _FIRST_ROWS if row_bytes is None else int(AIM_BYTES / max(row_bytes, 1))
        self.rows = max(1, min(most, first))

    def learn(self, rows: int, *, size: int, seconds: float) -> None:
        """Take into account a chunk that was read: its rows, its bytes, its time."""
        if not rows:
            return
        room = min(AIM_S / max(seconds, 1e-3), AIM_BYTES / max(size, 1))
        # A table's last rows say little; what varies a little stays as it is.
        if room <= _TOO_LARGE or (room > 1 and rows >= self.rows):
            wanted = int(min(rows * room, self.rows * _MOST_GROWTH))
            self.rows = max(1, min(self._most, wanted))
