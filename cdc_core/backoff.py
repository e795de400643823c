"""Back-off: how long to wait before the next try, by the number of failures in a row.

A caller counts its failures and waits in its own way, so that a request to stop can end its wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double with each failure in a row, up to the longest one.

    The first `immediate` failures have no pause. Units: seconds.
    """

    first_s: float
    max_s: float
    immediate: int = 0

    def pause_after(self, failures: int) -> float:
        """The pause after `failures` failures in a row; 0 without a failure."""
        doublings = failures - self.immediate - 1
        if doublings < 0:
            return 0.0
        # Compare before the power: what fails for hours would overflow it.
        if doublings >= math.log2(self.max_s / self.first_s):
            return self.max_s
        return self.first_s * 2.0**doublings
