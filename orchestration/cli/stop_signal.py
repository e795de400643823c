"""SIGTERM and Ctrl-C: the first lets the command drain, the second ends it at once or hurries it.

Ending at once loses nothing: the server sends again what is not staged.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDED_AT_ONCE = 3


def end_at_once() -> None:
    """End this process at once, without output."""
    os._exit(_ENDED_AT_ONCE)


@contextmanager
def listen_for_stop(
    *, again: Callable[[], None] = end_at_once, is_hang_up_stop: bool = False
) -> Iterator[threading.Event]:
    """Yield the event that the first signal sets; restore the former handlers after the block.

    Each further signal calls `again`. With `is_hang_up_stop`, SIGHUP is such a signal too, unless
    the process ignores it from the start, as under nohup.
    """
    stop = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            again()
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if is_hang_up_stop and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    former = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
