"""Which runs are silent: a run writes a sign of life to its record each minute while it works.

Nobody can ask whether a process of another host lives, and that host may be gone: a container that
was replaced has another name. Clocks of hosts differ and jump. So a sign is compared only with the
sign before it, and this process counts the time between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A run writes a sign each minute, and while it drains for 90 s none.
_SILENT_S = 900.0
# Looks come each minute. A longer gap between two looks counts as silence only up to this: while
# the instance is down, nobody looks, and no run can write.
_LONGEST_GAP_S = 120.0


@dataclass(slots=True)
class _Heard:
    sign: str
    looked_at: float
    silent_s: float = 0.0


class Listener:
    """Looks again and again at the signs of runs; lives as long as the code server.

    A new one counts from the beginning: then a silent run is found later.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was heard yet; the clock gives seconds that only grow."""
        self._clock = clock
        self._heard: dict[str, _Heard] = {}

    def find_silent(self, signs: Mapping[str, str]) -> set[str]:
        """Give the runs whose sign of life has not changed for too long; `signs` has those of now.

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
