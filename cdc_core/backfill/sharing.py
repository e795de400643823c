"""What the backfills of one process share, so that the source is never asked for more than agreed.

Connections that read at a time, bytes that wait in the spool, rows a second, and one look at the
source: no chunk begins while the slot has used up too much of its budget, or staging is too far
behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Chunks that capture has not taken yet lie in the spool.
WAITING_BYTES = 256 << 20
_LOOK_S = 2.0

Look = Callable[[], str | None]


def look_away() -> str | None:
    """See no reason to wait."""
    return None


class Sharing:
    """The agreed amounts, and what of them is in use."""

    def __init__(
        self,
        parallel: int,
        *,
        rows_per_second: float | None = None,
        look: Look = look_away,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` gives the reason why nothing may be read now; None if there is no reason.

        A thread holds the lock `first_reading` while it looks at the slot and then reads pages.
        """
        self.parallel = parallel
        self.rows_per_second = rows_per_second
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self.first_reading = threading.Lock()
        self._reading = 0
        self._waiting = 0
        self._free_at = clock()
        self._looked_at: float | None = None
        self._reason: str | None = None

    @property
    def held(self) -> str | None:
        """Why nothing may be read now, by a look that is not older than seconds."""
        with self._lock:
            now = self._clock()
            if self._looked_at is not None:
                if now - self._looked_at < _LOOK_S:
                    return self._reason
                self._looked_at = now  # Other threads use the last result until then.
        # The source may take its time, and reads go on.
        reason = self._look()
        with self._lock:
            self._reason, self._looked_at = reason, now
        return reason

    def try_begin(self) -> bool:
        """Take one of the connections for a read, if there is one, and room for what it brings."""
        with self._lock:
            is_free = self._reading < self.parallel and self._waiting < WAITING_BYTES
            if not is_free or self._clock() < self._free_at:
                return False
            self._reading += 1
            return True

    def end(self) -> None:
        """Give a connection back."""
        with self._lock:
            self._reading -= 1

    def add(self, rows: int, size: int) -> None:
        """Note rows that were read into the spool."""
        with self._lock:
            self._waiting += size
            if self.rows_per_second:
                begun = max(self._clock(), self._free_at)
                self._free_at = begun + rows / self.rows_per_second

    def remove(self, size: int) -> None:
        """Note bytes that left the spool."""
        with self._lock:
            self._waiting -= size
