"""Where reads of chunks are held."""

from __future__ import annotations

import threading

from tests.fix_pipeline import DEADLINE_S


class Gate:
    """Holds reads of chunks, in this process, at a named point."""

    def __init__(self, point: str = "after_chunk_stored") -> None:
        self._point = point
        self._opened, self._arrived = threading.Event(), threading.Event()
        self._opened.set()

    def reach(self, name: str) -> None:
        """Be where the worker says that it has arrived."""
        if name == self._point and not self._opened.is_set():
            self._arrived.set()
            assert self._opened.wait(DEADLINE_S)

    def close(self) -> None:
        """Hold the next read; back once it is held."""
        self._arrived.clear()
        self._opened.clear()
        assert self._arrived.wait(DEADLINE_S)

    def open(self) -> None:
        """Let it go on."""
        self._opened.set()
