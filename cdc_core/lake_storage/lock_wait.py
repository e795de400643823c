"""Waits for a lock that another process may hold."""

from __future__ import annotations

import time
from collections.abc import Callable

from cdc_core.errors import MergeError, Retry

_DEADLINE_S = 60.0


def wait_for_lock(try_take: Callable[[], bool], name: str, *, poll_s: float) -> None:
    """Call `try_take` until it returns True.

    Raises: MergeError after a minute; what `try_take` raises.
    """
    deadline = time.monotonic() + _DEADLINE_S
    while not try_take():
        if time.monotonic() > deadline:
            raise MergeError(
                f"{name} is locked by another process",
                fix="wait until that merge or maintenance ends, or stop it",
                retry=Retry.LATER,
            )
        time.sleep(poll_s)
