"""Folds keys that their last step does not decide, one by one: the rules of `fold.multi_row`.

These functions decide only what needs no old row of the table, and only for changes that send no
whole old row. Any other result is None, and Spark must fold. Pure: values stay where they are, and
a step names the log entry that has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


class Left(Enum):
    """What is left of a key if the changes leave no row that they brought.

    `NOTHING`: no row. `OLD_ROW`: as before the changes: the table's row, if it has one.
    """

    NOTHING = auto()
    OLD_ROW = auto()


def fold_departed(steps: Sequence[RareStep]) -> RareStep | Left:
    """Decide what is left of a key; the step that brought the row that remains, if one did.

    `steps` has all steps of the key, in order. Inside a transaction the oldest row departs first.
    If a row remains only if the table had one before, the result is `OLD_ROW`.
    """
    left: RareStep | Left = Left.OLD_ROW
    for _, of_transaction in groupby(steps, key=lambda step: step.transaction):
        own = list(of_transaction)
        rows, least = 0, 0
        for step in own:
            rows -= step.kind != ARRIVAL
            least = min(least, rows)
            rows += step.kind != DEPARTURE
        if rows - least >= 1 or (least == 0 and isinstance(left, RareStep)):
            # If a row was there before, it departed first.
            left = max((s for s in own if s.kind != DEPARTURE), key=lambda step: step.position)
        elif least < 0:
            left = Left.NOTHING
    return left


def find_values(key: Key, steps: Mapping[Key, Sequence[RareStep]]) -> dict[int, int | Key] | None:
    """Find the values that the last step of a key did not send, by the index of the column.

    A value is in a log entry, or in the table's row with a key. `steps` has all steps of the key
    and of every key that a row moved from or to, in order. None if the changes do not decide.
    """
    own = steps[key]
    found: dict[int, int | Key] = {}
    for column in own[-1].unsent:
        source = _find_value(key, own, column, steps)
        if source is None:
            return None
        found[column] = source
    return found


def _find_value(
    key: Key, own: Sequence[RareStep], column: int, steps: Mapping[Key, Sequence[RareStep]]
) -> int | Key | None:
    for step in reversed(own):
        if step.kind == DEPARTURE:
            return None
        if column not in step.unsent:
            return step.entry
        if step.kind == ARRIVAL:
            later = [other for other in own if other.transaction >= step.transaction]
            return _follow(step, column, steps) if _have_one_row(later) else None
    return key


def _follow(
    arrival: RareStep, column: int, steps: Mapping[Key, Sequence[RareStep]]
) -> int | Key | None:
    """Find a value that a moved row had under the keys that it came from."""
    while (origin := arrival.origin) is not None:
        before = [step for step in steps[origin] if step.position < arrival.position]
        came = None
        for step in reversed(before):
            if not _have_one_row(s for s in steps[origin] if s.transaction == step.transaction):
                return None
            if step.kind == DEPARTURE:
                return None
            if column not in step.unsent:
                return step.entry
            if step.kind == ARRIVAL:
                came = step
                break
        if not _have_one_row(s for s in steps[origin] if s.transaction == arrival.transaction):
            return None
        if came is None:
            return origin
        arrival = came
    return None


def _have_one_row(steps: Iterable[RareStep]) -> bool:
    """Whether a key certainly has at most one row at any moment of the transactions of its steps.

    The steps are all those of one or more transactions, in order.
    """
    for _, of_transaction in groupby(steps, key=lambda step: step.transaction):
        own = [step.kind for step in of_transaction]
        if own[0] == ARRIVAL:
            # The table may have a row with this key, too.
            if len(own) > 1:
                return False
            continue
        has_row = True
        for kind in own:
            if has_row == (kind == ARRIVAL):
                return False
            has_row = kind != DEPARTURE
    return True
