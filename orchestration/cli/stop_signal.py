"""SIGTERM and Ctrl-C: the first asks the command to drain, the second ends it at once or in haste.

Ending at once loses nothing: what is not staged is sent again by the server.
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
    """End this process without another word."""
    os._exit(_ENDED_AT_ONCE)


@contextmanager
def listen_for_stop(
    *, again: Callable[[], None] = end_at_once, is_hang_up_stop: bool = False
) -> Iterator[threading.Event]:
    """Give the event that the first signal sets; the former handlers return afterwards.

    `again` is what a second signal does. A hang-up may be such a signal too, unless it was ignored
    from the start, as nohup has it.
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
