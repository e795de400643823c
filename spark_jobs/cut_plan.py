"""Which version a cut names for each table, and which tables a reader of a cut must fold.

Two rules make every table readable at one LSN:

- A cut names no version that holds a change above the cut. A run that died may have committed a
  table further than a later, shorter round goes: the cut then keeps the table where it was.
- A cut may name a version below itself: the table was left out of the round, or the merge failed at
  it. Who reads at the cut folds the log from the table's own bound up to the cut.

Pure: no Spark, no file, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdc_core.vocabulary import Lsn
from spark_jobs.lake import Bound

# Below every change of the log.
ORIGIN = Bound(0, Lsn(0))


@dataclass(frozen=True, slots=True)
class Place:
    """How far a table is merged, and the version of its Delta table; None before its first."""

    bound: Bound
    version: int | None


def name_places(
    cut: Bound,
    before: Mapping[str, Place],
    reached: Mapping[str, Place],
    *,
    waiting: Collection[str],
) -> dict[str, Place]:
    """Where a cut says that each table is.

    `before` is what the cut before it says. `reached` is where the tables that the round looked at
    are now. `waiting` are the tables that have changes below the cut, in the round's part of the
    log or before it: those that the round did not bring forward stay where they were. Any other
    table has no change up to the cut, so it is merged through the cut at its old version.
    """
    places: dict[str, Place] = {}
    for table in {*before, *reached, *waiting}:
        known = before.get(table, Place(ORIGIN, None))
        found = reached.get(table)
        if found is not None and found.bound <= cut:
            places[table] = found
        elif found is not None or table in waiting:
            places[table] = known
        else:
            places[table] = Place(cut, known.version)
    return places


def needs_fold(merged: Bound, at: Bound, *, is_halted: bool) -> bool:
    """Whether a table that is merged through a bound must be folded to be read at another.

    A halted table is not folded further: the answer names it with the bound that it stopped at.
    """
    return merged < at and not is_halted
