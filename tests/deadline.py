"""Waiting for a state, with a deadline. Where the tests sleep, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_INTERVAL_S = 0.01


class DeadlineMissedError(AssertionError):
    """The state did not come in time."""


def wait_for(condition: Callable[[], T], deadline_s: float, what: str) -> T:
    """Give the first true answer of the condition, else raise when the deadline has passed.

    The condition is asked once more after the deadline, so that a slow machine is not a failure.
    """
    end = time.monotonic() + deadline_s
    while True:
        late = time.monotonic() >= end
        if answer := condition():
            return answer
        if late:
            message = f"waited {deadline_s:g} s in vain for {what}"
            raise DeadlineMissedError(message)
        time.sleep(POLL_INTERVAL_S)
