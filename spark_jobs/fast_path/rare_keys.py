"""Folds keys that their last step does not decide, one by one: the rules of `fold.multi_row`.

These functions decide only what needs no old row of the table, and only for changes that send no
whole old row. If the result depends on the table, `fold_departed` returns `OldRow.STAYS` and
`find_values` returns None. Pure: values stay where they are, and a step names the log entry that
has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby
from typing import TypeAlias

from spark_jobs.fold.steps import ARRIVAL, DEPARTURE

# The texts of a row's key.
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RareStep:
    """A step of one key: its index, its log entry, its kind and position.

    `origin` is the key that a moved row came from. `unsent` has the indexes of the columns that the
    source did not send; it is empty for a departure.
    """

    index: int
    entry: int
    kind: int
    position: tuple[int, int, int]
    origin: Key | None
    unsent: frozenset[int]

    @property
    def transaction(self) -> tuple[int, int]:
        """The epoch and the commit LSN."""
        return self.position[:2]


class OldRow(Enum):
    """What became of the row that a key had before changes, if no row that they brought remains.

    `REMOVED`: the key has no row now. `STAYS`: the table's row stays, if it has one.
    """

    REMOVED = auto()
    STAYS = auto()


def fold_departed(steps: Sequence[RareStep]) -> RareStep | OldRow:
    """Decide which row a key has after its steps: the step that brought it, or the old row.

    `steps` has all steps of the key, in order. Inside a transaction the oldest row departs first.
    If a row remains only if the table had one before, the result is `OldRow.STAYS`.
    """
    remaining: RareStep | OldRow = OldRow.STAYS
    for _, of_transaction in groupby(steps, key=lambda step: step.transaction):
        own = list(of_transaction)
        rows, least = 0, 0
        for step in own:
            rows -= step.kind != ARRIVAL
            least = min(least, rows)
            rows += step.kind != DEPARTURE
        if rows - least >= 1 or (least == 0 and isinstance(remaining, RareStep)):
            # If a row was there before, it departed first.
            remaining = max((s for s in own if s.kind != DEPARTURE), key=lambda step: step.position)
        elif least < 0:
            remaining = OldRow.REMOVED
    return remaining


class RareKey:
    """The steps of one key, in order."""

    def __init__(self, steps: Sequence[RareStep]) -> None:
        """Take all steps of the key."""
        self.steps = steps
        self._has_one_row = {
            transaction: _has_one_row([step.kind for step in own])
            for transaction, own in groupby(steps, key=lambda step: step.transaction)
        }

    def has_one_row(self, transaction: tuple[int, int]) -> bool:
        """Whether the key certainly has at most one row at any moment of a transaction."""
        return self._has_one_row[transaction]

    def list_before(self, position: tuple[int, int, int]) -> Iterator[RareStep]:
        """List the steps below a position, the last first."""
        end = bisect_left(self.steps, position, key=lambda step: step.position)
        return (self.steps[index] for index in range(end - 1, -1, -1))


def find_values(
    key: Key, columns: Iterable[int], keys: Mapping[Key, RareKey]
) -> dict[int, int | Key] | None:
    """Find the values of some columns that the last step of a key did not send.

    A value is in a log entry, or in the table's row with a key. `keys` has the key, and every key
    that a row moved from or to. None if the changes do not decide.
    """
    found: dict[int, int | Key] = {}
    for column in columns:
        source = _find_value(key, column, keys)
        if source is None:
            return None
        found[column] = source
    return found


def _find_value(key: Key, column: int, keys: Mapping[Key, RareKey]) -> int | Key | None:
    for step in reversed(keys[key].steps):
        if step.kind == DEPARTURE:
            return None
        if column not in step.unsent:
            return step.entry
        if step.kind == ARRIVAL:
            # Only renewals follow, and the transaction ends with one row: it is this one.
            return _follow(step, column, keys)
    return key


def _follow(arrival: RareStep, column: int, keys: Mapping[Key, RareKey]) -> int | Key | None:
    """Find a value that a moved row had under the keys that it came from."""
    while (origin := arrival.origin) is not None:
        former, came = keys[origin], None
        if not former.has_one_row(arrival.transaction):
            # The key may have had several rows. The oldest departs first, and no step names it.
            return None
        for step in former.list_before(arrival.position):
            if step.kind == DEPARTURE:
                return None
            if column not in step.unsent:
                return step.entry
            if step.kind == ARRIVAL:
                came = step
                break
        if came is None:
            return origin
        arrival = came
    return None


def _has_one_row(kinds: Sequence[int]) -> bool:
    """Whether a key certainly has at most one row at any moment of a transaction of some steps.

    Before and after a transaction the key has at most one row. If the last step brings a row, the
    key has one afterwards, which tells whether it had one before.
    """
    if kinds[-1] != DEPARTURE:
        rows = 1 - kinds.count(ARRIVAL) + kinds.count(DEPARTURE)
    elif kinds[0] != ARRIVAL:
        rows = 1
    else:
        return False
    for kind in kinds:
        if rows != (0 if kind == ARRIVAL else 1):
            return False
        rows = 0 if kind == DEPARTURE else 1
    return True
