"""Lowers the priority of a thread, so that work in the background takes only what is left over."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICE = 10


def lower_priority() -> None:
    """Give this thread a low priority. Linux has one for each thread; elsewhere nothing happens.

    Source: setpriority(2), section C library/kernel differences.
    """
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
