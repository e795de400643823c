"""Finds silent runs: a run writes a sign of life to its record each minute while it works.

This process cannot check whether a process of another host lives. That host may be gone: a new
container has another name. The clocks of hosts differ and jump. So a sign is compared only with the
sign before it, and this process counts the time between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A run writes a sign each minute, but none while it drains, for up to 90 s.
_SILENT_S = 900.0
# Looks come at least once a minute. A longer gap between two looks counts as silence only up to
# this: while the instance is down, no sensor looks, and no run can write.
_LONGEST_GAP_S = 120.0


@dataclass(slots=True)
class _LastSign:
    sign: str
    looked_at: float
    silent_s: float = 0.0


class Listener:
    """Looks repeatedly at the signs of life of runs; lives as long as the code server.

    A new listener counts from the beginning, so it finds a silent run later.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was heard yet; the clock gives seconds that only grow."""
        self._clock = clock
        self._heard: dict[str, _LastSign] = {}

    def find_silent(self, signs: Mapping[str, str]) -> set[str]:
        """The runs whose sign of life has not changed for too long; `signs` has the current ones.

        The listener forgets a run that is not in `signs`.
        """
        now = self._clock()
        self._heard = {run: self._hear(run, sign, now) for run, sign in signs.items()}
        return {run for run, heard in self._heard.items() if heard.silent_s >= _SILENT_S}

    def _hear(self, run: str, sign: str, now: float) -> _LastSign:
        before = self._heard.get(run)
        if before is None or before.sign != sign:
            return _LastSign(sign, now)
        gap = min(now - before.looked_at, _LONGEST_GAP_S)
        return _LastSign(sign, now, before.silent_s + gap)
