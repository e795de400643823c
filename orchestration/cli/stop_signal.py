"""SIGTERM and Ctrl-C: the first asks the command to drain, the second ends it at once.

Ending at once loses nothing: what is not staged is sent again by the server.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDED_AT_ONCE = 3


@contextmanager
def listen_for_stop() -> Iterator[threading.Event]:
    """Give the event that the first signal sets; the former handlers return afterwards."""
    stop = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(_ENDED_AT_ONCE)
        stop.set()

    former = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
