"""Lowers the priority of a thread, so that work in the background gets a smaller share of CPU."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICE = 10


def lower_priority() -> None:
    """Give this thread a low priority. Only on Linux does each thread have a priority.

    Source: setpriority(2), section C library/kernel differences.
    """
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
