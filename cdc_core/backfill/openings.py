"""The reads of a backfill that are open, and the oldest snapshot among them.

Each snapshot is registered before a later one is taken. So capture keeps every change that an open
snapshot does not see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from cdc_core.backfill.visibility import Snapshot, find_common

_Look = TypeVar("_Look")


class Openings:
    """Snapshots in use, by a number."""

    def __init__(self) -> None:
        """None is in use."""
        self._lock = threading.Lock()
        self._open: dict[int, Snapshot] = {}

    def take(self, number: int, look: Callable[[], tuple[Snapshot, _Look]]) -> _Look:
        """Take a snapshot; nobody else takes one or asks for the oldest one at the same time."""
        with self._lock:
            snapshot, seen = look()
            self._open[number] = snapshot
        return seen

    def find_oldest(self) -> Snapshot:
        """The snapshot that sees only what all in use see."""
        with self._lock:
            return find_common(self._open.values())

    def release(self, number: int) -> None:
        """Note that a snapshot is used no more."""
        with self._lock:
            self._open.pop(number, None)
