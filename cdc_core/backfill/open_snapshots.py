"""The open snapshots of a backfill, and the oldest of them: it sees only what all of them see.

A reader registers its snapshot before the next reader takes one. So capture keeps every changed key
that an open snapshot does not see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from cdc_core.backfill.visibility import Snapshot, find_common

_Look = TypeVar("_Look")


class OpenSnapshots:
    """The open snapshots, by the number of the read."""

    def __init__(self) -> None:
        """Start with no open snapshot."""
        self._lock = threading.Lock()
        self._open: dict[int, Snapshot] = {}

    def take(self, number: int, look: Callable[[], tuple[Snapshot, _Look]]) -> _Look:
        """Take a snapshot with `look` and register it; return the other result of `look`.

        Other threads wait before they take a snapshot or ask for the oldest.
        """
        with self._lock:
            snapshot, seen = look()
            self._open[number] = snapshot
        return seen

    def find_oldest(self) -> Snapshot:
        """The snapshot that sees only what every open snapshot sees."""
        with self._lock:
            return find_common(self._open.values())

    def release(self, number: int) -> None:
        """Remove the snapshot of a read that has ended."""
        with self._lock:
            self._open.pop(number, None)
