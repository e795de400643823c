"""Opens the targets of a round: each is locked, and rid of what dead merges left in its folder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from deltalake import DeltaTable

from cdc_core.targets import Target
from spark_jobs.delta.abandoned_attempts import clear_attempts
from spark_jobs.lake.cut_plan import FoundTable, Place
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Bound
from spark_jobs.merge.round_start import RoundStart
from spark_jobs.session.session import find_jvm
from spark_jobs.target.older_targets import find_target


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """A locked target: its Delta table, if it has one, and what was found in its folder."""

    target: Target
    delta: DeltaTable | None
    found: FoundTable | None

    @property
    def own(self) -> DeltaTable | None:
        """The Delta table, unless another writer has replaced it."""
        return None if self.found is None or self.found.is_foreign else self.delta

    def stay(self, upper: Bound, low: Bound | None) -> Place:
        """The place of a target that a merge leaves as it is."""
        bound = upper if low is None else max(low, upper)
        if self.own is None:
            return Place(bound, None)
        reached = None if self.found is None else self.found.bound
        return Place(bound, self.own.version(), reached)


def open_target(
    start: RoundStart, target: Target, cut: Bound, *, held: ExitStack
) -> OpenedTarget | None:
    """Lock and open a target, without what dead merges left in its folder.

    None if it is already beyond the cut: a longer round merged it, and died before its cut.
    """
    folder = start.lake.locate_target(target)
    held.enter_context(start.lake.lock_table(str(target), jvm=find_jvm(start.session)))
    delta = open_current(folder)
    if clear_attempts(folder, start.epochs):
        delta = open_current(folder)
    found = find_target(delta, start.epochs)
    if found is not None and found.bound is not None and found.bound > cut:
        return None
    _force_unnamed_commits(start, target, found)
    return OpenedTarget(target, delta, found)


def _force_unnamed_commits(start: RoundStart, target: Target, found: FoundTable | None) -> None:
    """Force a target's commits that no cut names to the disk, because new commits build on them.

    Raises: MergeError.
    """
    name = str(target)
    place = start.find_place(name)
    known = None if place is None or name in start.older else place.version
    if found is not None and found.version != known:
        above = -1 if known is None else known
        left = _find_abandoned_version(start, name, found)
        folder = start.lake.locate_target(target)
        require_durable(folder, above=above, through=found.version, left=left)


def _find_abandoned_version(start: RoundStart, table: str, found: FoundTable | None) -> int | None:
    """The version that a merge left when it died before its cut; None if no merge did.

    A bound that is not the cut's shows such a merge. So does a table that no cut names: the commit
    that creates a table has no bound.
    """
    if found is None or table in start.older:
        return None
    place = start.find_place(table)
    is_made = place is None or place.version is None
    is_left = is_made or found.bound not in {None, None if place is None else place.held}
    return found.version if is_left else None
