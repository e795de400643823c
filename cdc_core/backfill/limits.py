"""The limits that the backfills of one process share, so that they never overload the source.

They limit the connections that read at a time, the bytes that wait in the spool, and the rows per
second. The backfills also share one check of the source: no chunk begins while the slot has used
too much of its budget, or while staging is too far behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# The limit for chunks in the spool that capture has not taken yet.
WAITING_BYTES = 256 << 20
_LOOK_S = 2.0

Look = Callable[[], str | None]


def never_hold() -> str | None:
    """Return no reason to wait."""
    return None


class BackfillLimits:
    """The limits, and how much of each is in use."""

    def __init__(
        self,
        parallel: int,
        *,
        rows_per_second: float | None = None,
        look: Look = never_hold,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with nothing in use; `look` returns why no chunk may begin, None if one may.

        A thread holds the lock `first_reading` while it checks the slot and then reads pages.
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
        """Why no chunk may begin, None if one may; a result of `look` counts for two seconds."""
        with self._lock:
            now = self._clock()
            if self._looked_at is not None:
                if now - self._looked_at < _LOOK_S:
                    return self._reason
                self._looked_at = now  # Until then, other threads use the last result.
        # Check without the lock: the source may be slow, and running reads must go on.
        reason = self._look()
        with self._lock:
            self._reason, self._looked_at = reason, now
        return reason

    def try_begin(self) -> bool:
        """Reserve a connection for a read; False if the limits do not allow a read now."""
        with self._lock:
            is_free = self._reading < self.parallel and self._waiting < WAITING_BYTES
            if not is_free or self._clock() < self._free_at:
                return False
            self._reading += 1
            return True

    def end(self) -> None:
        """Release the connection of a read."""
        with self._lock:
            self._reading -= 1

    def add(self, rows: int, size: int) -> None:
        """Count rows and bytes that were read into the spool."""
        with self._lock:
            self._waiting += size
            if self.rows_per_second:
                begun = max(self._clock(), self._free_at)
                self._free_at = begun + rows / self.rows_per_second

    def remove(self, size: int) -> None:
        """Subtract bytes that left the spool."""
        with self._lock:
            self._waiting -= size
