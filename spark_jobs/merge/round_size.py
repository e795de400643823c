"""How many entries of a backlog one round takes: few while the JVM of the run is cold."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_SHARE = 8
# Seconds of rounds, after which the JVM is warm. If rounds take this long with few entries, small
# rounds would only repeat their fixed cost.
_WARM_AFTER_S = 60.0


@dataclass
class RoundSize:
    """The size of the next round of a run; it grows with what the run has merged.

    A JVM that has just started merges several times slower than later, and readers wait for the cut
    at the end of the round. So a round takes no more entries than the run has merged before, but at
    least an eighth of `most`, and at most `most`.
    """

    most: int
    merged: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, size: int | RoundSize) -> RoundSize:
        """A size that is given, or one that is the same for every round."""
        return size if isinstance(size, RoundSize) else cls(size, merged=size)

    def choose(self) -> int:
        """Choose how many entries the next round takes."""
        if self.seconds >= _WARM_AFTER_S:
            return self.most
        return min(self.most, max(self.most // _FIRST_SHARE, self.merged))

    def count(self, entries: int, seconds: float) -> None:
        """Count the entries and the seconds of a round."""
        self.merged += entries
        self.seconds += seconds

    def stop_growing(self) -> None:
        """Take `most` from now on."""
        self.merged = max(self.merged, self.most)
