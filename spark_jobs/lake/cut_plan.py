"""Decides which version a cut names for a table, when a reader must fold, and what is too old.

Three rules make every table readable at one LSN:

- A cut names no version that holds a change above the cut. A run that died may have committed a
  table further than a later, shorter round goes: the cut then keeps the table where it was.
- A cut may name a version below itself: the table was left out of the round, or the merge failed at
  it. A reader at the cut folds the log from the table's own bound up to the cut.
- If a table is older than its cut (deleted, restored from a copy, its last commit lost), the merge
  folds from the table's present bound, not from the cut. If the log lacks changes for that, the
  merge queues a whole backfill. The merge treats a table that another writer has replaced as if its
  folder were gone.

Pure: no Spark, no file, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound

# Below every change of the log.
ORIGIN = Bound(0, Lsn(0))


@dataclass(frozen=True, slots=True)
class Place:
    """How far a table is merged, and the version of its Delta table; None before its first version.

    `held` is the bound in that version's own commit. It is below `bound` if the table had no change
    since. It is None if that commit has no bound.
    """

    bound: Bound
    version: int | None
    held: Bound | None = None


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What a table's folder holds: its newest version, and the newest bound in its commits.

    Another writer has replaced the rows of a foreign table; older commits still carry our bound.
    """

    version: int
    bound: Bound | None
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the fold of a table begins: above `low`; None is the beginning of the log.

    If `missing` is not None, the log lacks changes: the table needs a whole backfill that begins at
    or above this bound.
    """

    low: Bound | None
    missing: Bound | None


def name_places(
    cut: Bound,
    before: Mapping[str, Place],
    reached: Mapping[str, Place],
    *,
    waiting: Collection[str],
    previous: Bound | None,
) -> dict[str, Place]:
    """Choose the place that a new cut gives each table.

    `before`: the places in the previous cut, which is at the bound `previous`. A table that it does
    not name had no change up to there. `reached`: the new places of the tables that the round
    examined. `waiting`: the tables that have unmerged changes up to the cut. If the round did not
    merge such a table, or the table is beyond the cut, it keeps its previous place. Any other table
    has no change up to the cut, so it is merged through the cut at its old version.
    """
    places: dict[str, Place] = {}
    for table in {*before, *reached, *waiting}:
        known = before.get(table, Place(previous or ORIGIN, None))
        found = reached.get(table)
        if found is not None and found.bound <= cut:
            places[table] = found
        elif found is not None or table in waiting:
            places[table] = known
        else:
            places[table] = Place(cut, known.version, known.held)
    return places


def choose_places(known: Mapping[str, Place], wanted: Collection[Target]) -> dict[str, Place]:
    """Choose the targets that a round looks after, with their places in the newest cut.

    `wanted` has every target that the settings ask for. A target of entries is left out if nobody
    asks for it any more. If it is new, it lacks everything that the log has.
    """
    named = {str(target) for target in wanted}
    places = {
        name: place
        for name, place in known.items()
        if name in named or Target.parse(name).kind is TargetKind.ROWS
    }
    new = {str(target) for target in wanted if target.kind is not TargetKind.ROWS}
    return dict.fromkeys(new, Place(ORIGIN, None)) | places


def needs_fold(merged: Bound, at: Bound, *, is_halted: bool) -> bool:
    """Whether a reader at `at` must fold changes on a table that is merged through `merged`.

    A halted table is not folded further: the reader gets it as of the bound at which it halted.
    """
    return merged < at and not is_halted


def find_age(place: Place | None, found: FoundTable | None) -> str | None:
    """Decide whether a table is older than its cut; give the reason, or None if it is not."""
    if place is None or place.version is None:
        return None
    if found is None:
        return f"its folder is gone, but the newest cut names its version {place.version}"
    if found.is_foreign:
        named = f"version {place.version}, which the newest cut names"
        return f"another writer has replaced it since {named}"
    if found.version < place.version:
        return f"it is at version {found.version}, but the newest cut names version {place.version}"
    if place.held is not None and (found.bound is None or found.bound < place.held):
        merged = "no merged LSN" if found.bound is None else f"merged LSN {found.bound.lsn}"
        return f"it has {merged}, but the newest cut names merged LSN {place.held.lsn}"
    return None


def find_origin(
    place: Place | None,
    found: FoundTable | None,
    *,
    is_halted: bool,
    log_begins: Bound | None,
    first_cut: Bound | None,
    trimmed: Bound | None,
) -> Origin:
    """Decide where the fold of a table begins, and whether the log has all that it needs.

    `log_begins` is the least bound of an entry in the log, `first_cut` the first cut ever written,
    `trimmed` the bound up to which capture has trimmed the log. A log that was never trimmed has
    lost entries if it begins after the table's own bound, or after `first_cut` if the table has no
    bound. A halted table that is gone or replaced begins at the change that halted it. Its older
    rows have the old table schema, so it needs a whole backfill.
    """
    is_ours = found is not None and not found.is_foreign
    held = found.bound if found is not None and is_ours else None
    if find_age(place, found) is None:
        known = (held, None if place is None else place.bound)
        low = max((one for one in known if one is not None), default=None)
        # Only a rebuild ends the halt of a table whose changes were trimmed; see `merge.tables`.
        is_lost = trimmed is not None and (low is None or low < trimmed) and not is_halted
        return Origin(low, trimmed if is_lost else None)
    assert place is not None
    if not is_ours and is_halted:
        return Origin(place.bound, place.bound)
    if trimmed is not None:
        return Origin(held, None if held is not None and trimmed <= held else trimmed)
    needed = first_cut if held is None else held
    reaches_back = log_begins is not None and needed is not None and log_begins <= needed
    return Origin(held, None if reaches_back else log_begins or place.bound)
