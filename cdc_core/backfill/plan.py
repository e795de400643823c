"""The ranges of a table's key: which are unread, which are being read, which are in the log.

The plan cuts ranges off the rest of the key, one after the other. So a backfill also reads the rows
that a growing table adds at its end. The plan splits a range that has too many bytes. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cdc_core.spooled import Key


@dataclass(frozen=True, slots=True)
class Range:
    """Keys above `low` and up to `high`; None means no bound. `attempt` numbers its reads.

    If `asked` is set, the range is exactly these keys.
    """

    number: int
    low: Key | None
    high: Key | None
    attempt: int = 1
    asked: tuple[Key, ...] | None = None


class Plan:
    """The ranges of one backfill."""

    def __init__(
        self, *, low: Key | None = None, high: Key | None = None, staged: Iterable[Range] = ()
    ) -> None:
        """Plan to read everything between the bounds, except the ranges that are staged already."""
        self._end = high
        self._rest: tuple[Key | None, Key | None] | None = (low, high)
        # Parts to cut into ranges after the rest.
        self._later: deque[tuple[Key | None, Key | None]] = deque()
        self._again: deque[Range] = deque()
        self._open: dict[tuple[int, int], Range] = {}
        # By number: the ranges that the log has taken since this plan was made.
        self.taken: dict[int, Range] = {}
        known = {one.number: one for one in staged}
        self._next = max(known, default=-1) + 1
        following = {one.low: number for number, one in known.items()}
        while known and self._rest is not None:
            # Find the staged range that begins where the last one ended. If none does, plan a range
            # for the gap up to the staged range with the lowest number that is left. If ranges were
            # split, staged ranges may lie in the gap. The backfill reads these again.
            at = self._rest[0]
            number = following.get(at)
            if number not in known:
                number = min(known)
                self._again.append(Range(self._take_number(), at, known[number].low))
            found = known.pop(number)
            self._rest = None if found.high == high else (found.high, high)

    @classmethod
    def of_keys(cls, keys: Sequence[Key], *, at_once: int) -> Plan:
        """Plan to read only some keys, `at_once` of them in one read."""
        plan = cls()
        plan._rest = None
        batches = (tuple(keys[i : i + at_once]) for i in range(0, len(keys), at_once))
        plan._again.extend(Range(n, None, None, asked=batch) for n, batch in enumerate(batches))
        plan._next = len(plan._again)
        return plan

    @classmethod
    def of_ranges(cls, ranges: Iterable[Range]) -> Plan:
        """Plan to read only some ranges of another plan; each is cut into new ranges."""
        plan = cls()
        plan._later.extend((one.low, one.high) for one in ranges)
        plan._rest = plan._take_later()
        return plan

    @property
    def is_done(self) -> bool:
        """Whether every range is in the log."""
        return self._rest is None and not self._again and not self._open

    @property
    def has_more(self) -> bool:
        """Whether a range can be read now."""
        return self._rest is not None or bool(self._again)

    @property
    def rest(self) -> tuple[Key | None, Key | None] | None:
        """The part that is not cut into ranges yet; None if every part is cut."""
        return self._rest

    def take_again(self) -> Range | None:
        """Return a range that must be read again; None if no range must."""
        if not self._again:
            return None
        taken = self._again.popleft()
        self._open[taken.number, taken.attempt] = taken
        return taken

    def cut(self, boundary: Key | None) -> Range:
        """Cut the next range off the rest, up to a boundary; None cuts all of the rest."""
        assert self._rest is not None
        low, high = self._rest
        cut = Range(self._take_number(), low, high if boundary is None else boundary)
        self._rest = self._take_later() if boundary is None else (boundary, high)
        self._open[cut.number, cut.attempt] = cut
        return cut

    def split(self, whole: Range, boundary: Key) -> Range:
        """Return the part of a range up to a boundary; plan to read the part above it later."""
        part = replace(whole, high=boundary)
        self._open[part.number, part.attempt] = part
        self._again.append(Range(self._take_number(), boundary, whole.high))
        return part

    def _take_later(self) -> tuple[Key | None, Key | None] | None:
        return self._later.popleft() if self._later else None

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1

    def record_staged(self, number: int, attempt: int) -> Range | None:
        """Note that the log has a range, and return it; None if no such attempt is open."""
        taken = self._open.pop((number, attempt), None)
        if taken is not None:
            self.taken[number] = taken
        return taken

    @property
    def unanswered(self) -> list[Range]:
        """The ranges that are being read, or that were read and are not in the log yet."""
        return list(self._open.values())

    def record_void(self, number: int, attempt: int) -> None:
        """Note that a range must be read again."""
        void = self._open.pop((number, attempt), None)
        if void is None:
            return
        if void.asked is None and self._rest is None and void.high == self._end:
            # The last range may have grown, so cut it again.
            self._rest = (void.low, self._end)
        else:
            self._again.append(replace(void, attempt=attempt + 1))
