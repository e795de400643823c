"""Which runs are silent: a run writes a sign of life to its record each minute while it works.

Whether a process of another host lives cannot be asked, and that host may be gone: a container that
was made again has another name. Clocks of hosts differ and jump, so what a sign says is compared
with nothing but the sign before it, and time is counted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A run writes a sign each minute, and while it drains for 90 s none.
_SILENT_S = 900.0
# What may lie between two looks counts as silence only as far as looks are made regularly, each
# minute at least. While the instance is down, nobody looks and no run can write.
_LONGEST_GAP_S = 120.0


@dataclass(slots=True)
class _Heard:
    sign: str
    looked_at: float
    silent_s: float = 0.0


class Listener:
    """Looks again and again at the signs of runs; lives as long as the code server.

    A new one begins to count: that delays, and does nothing else.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was heard yet; the clock gives seconds that only grow."""
        self._clock = clock
        self._heard: dict[str, _Heard] = {}

    def find_silent(self, signs: Mapping[str, str]) -> set[str]:
        """The runs, of those with these signs now, that have shown no other for very long.

        A run that is not among them is forgotten.
        """
        now = self._clock()
        self._heard = {run: self._hear(run, sign, now) for run, sign in signs.items()}
        return {run for run, heard in self._heard.items() if heard.silent_s >= _SILENT_S}

    def _hear(self, run: str, sign: str, now: float) -> _Heard:
        before = self._heard.get(run)
        if before is None or before.sign != sign:
            return _Heard(sign, now)
        gap = min(now - before.looked_at, _LONGEST_GAP_S)
        return _Heard(sign, now, before.silent_s + gap)
