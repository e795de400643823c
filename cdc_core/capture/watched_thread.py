"""A thread that keeps the error that ended it, so that the loop can raise the error."""

from __future__ import annotations

import threading
from collections.abc import Callable


class WatchedThread:
    """A running thread, and the error that ended it, if one did."""

    def __init__(self, run: Callable[[], None], *, name: str) -> None:
        """Start the thread; the process does not wait for its end."""
        self.failure: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._keep_failure, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def require_alive(self) -> None:
        """Raise the error that ended the thread, if one did."""
        if self.failure is not None:
            raise self.failure

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _keep_failure(self) -> None:
        try:
            self._run()
        except BaseException as exc:  # noqa: BLE001 - `require_alive` raises it.
            self.failure = exc
