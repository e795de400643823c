"""Work that a test does in a thread while it does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


class Background:
    """Work in a thread of its own while a block runs. The block raises what the work raised."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self.is_over = threading.Event()
        self._work = work
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    @property
    def is_working(self) -> bool:
        """Whether the work goes on. Raises: what ended it."""
        if self._failure is not None:
            raise self._failure
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        """Begin the work."""
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Ask the work to end, and wait for it."""
        self.is_over.set()
        self._thread.join()
        if error is None:
            assert not self.is_working

    def _run(self) -> None:
        try:
            self._work(self.is_over)
        except BaseException as failure:  # noqa: BLE001 - The block raises it.
            self._failure = failure
