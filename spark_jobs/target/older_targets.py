"""Finds the tables of the lake that are older than the newest cut says.

A person deleted the folder or restored it from a copy, or a power failure took its last commits. Or
another writer replaced the table: it then counts as a table without a folder. A thorough merge
opens every table before its first round. Before other rounds, it opens only the tables that lack
the commit file that the cut names; to look for that file costs no more than a file's status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.targets import Target, TargetKind
from spark_jobs.fold.plan import has_table_schema
from spark_jobs.lake.cut_plan import FoundTable, Place, find_age
from spark_jobs.lake.damaged_tables import UnreadableTable, open_current
from spark_jobs.lake.lake import Bound, Epoch, Lake, find_bound
from spark_jobs.log.files import LogFiles
from spark_jobs.modes.registry import choose_mode, find_mode

FIX = (
    "run `walgate merge`: it builds the table again, and queues a backfill if the log lacks changes"
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an inspection of the targets of a cut found, by name.

    `older` has the reason for each target that is older than its cut. The targets in `other_modes`
    were opened, and were written in another mode than the settings choose.
    """

    older: dict[str, str]
    other_modes: frozenset[str] = frozenset()


def inspect_targets(
    lake: Lake, places: Mapping[str, Place], epochs: list[Epoch], *, is_thorough: bool
) -> Inspection:
    """Find the targets that are older than a cut says, or that have another mode than asked for.

    `places` has the places in the cut. A target that cannot be opened counts as older. Unless
    `is_thorough`, a target that has the commit file that the cut names is not opened.
    """
    older: dict[str, str] = {}
    other_modes: set[str] = set()
    for name, place in places.items():
        if place.version is None:
            continue
        target = Target.parse(name)
        folder = lake.locate_target(target)
        commit = folder / name_commit(place.version)
        if commit.exists() and not is_thorough:
            continue
        try:
            delta = open_current(folder)
        except UnreadableTable as error:
            # The round tries this table, too. If it fails again, the other tables go on.
            older[name] = error.message
            continue
        found = find_target(delta, epochs)
        age = find_age(know_place(place, epochs), found)
        if age is not None:
            older[name] = age
        elif delta is not None and (
            has_other_mode(lake, target, delta)
            # A merge may have died after it changed the mode, and before its cut.
            or _names_other_mode(lake, target, place, delta)
        ):
            other_modes.add(name)
    return Inspection(older, frozenset(other_modes))


def has_other_mode(lake: Lake, target: Target, table: DeltaTable) -> bool:
    """Whether a target's rows were written in another mode than the settings choose."""
    is_of_rows = target.kind is TargetKind.ROWS
    return is_of_rows and find_mode(table) != choose_mode(lake, target.table)


def know_place(place: Place, epochs: list[Epoch]) -> Place:
    """Return a place, without its `held` bound if the lake does not know that bound's epoch.

    `find_bound` finds only bounds of known epochs, so no commit could show this one.
    """
    is_known = place.held is not None and any(e.number == place.held.epoch for e in epochs)
    return place if is_known else replace(place, held=None)


def _names_other_mode(lake: Lake, target: Target, place: Place, newest: DeltaTable) -> bool:
    """Whether the version that a cut names has another mode than the settings choose."""
    if target.kind is not TargetKind.ROWS or place.version in {None, newest.version()}:
        return False
    try:
        named = open_delta(lake.locate_target(target), version=place.version)
    except (DeltaError, OSError):
        return False  # Readers say that the version is gone.
    return has_other_mode(lake, target, named)


def find_target(table: DeltaTable | None, epochs: list[Epoch]) -> FoundTable | None:
    """What a target's folder holds; None if it holds no table."""
    if table is None:
        return None
    return FoundTable(
        table.version(), find_bound(table, epochs), is_foreign=not has_table_schema(table)
    )


def find_log_begin(log: LogFiles) -> Bound | None:
    """The least bound of an entry in the log; None if no file of the log has one."""
    return min((file.begin for file in log.files if file.begin is not None), default=None)
