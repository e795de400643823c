"""What a round starts from: the newest cut, the log, and the tables that are older than the cut."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc_core.table_states import TableState
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Relation, TableName
from spark_jobs.lake.cut_plan import (
    FoundTable,
    Origin,
    Place,
    find_age,
    find_origin,
)
from spark_jobs.lake.lake import Bound, Epoch, Lake
from spark_jobs.lake.ledger import Cut, find_first_bound, queue_tables, read_states
from spark_jobs.log.files import LogFiles
from spark_jobs.schema.evolution import Halt
from spark_jobs.session.session import forget_tables
from spark_jobs.target.older_targets import Inspection, find_log_begin, know_place

_logger = logging.getLogger("walgate.merge")


@dataclass(frozen=True, slots=True)
class RoundStart:
    """What a round starts from.

    `places` has the places of targets in the newest cut. `inspection` says which targets are not as
    the cut says.
    """

    session: SparkSession
    lake: Lake
    log: LogFiles
    epochs: list[Epoch]
    relations: dict[int, Relation]
    cut: Cut | None
    places: Mapping[str, Place]
    inspection: Inspection

    @property
    def older(self) -> dict[str, str]:
        """The tables that are older than the newest cut says, with the reasons."""
        return self.inspection.older

    @property
    def low(self) -> Bound | None:
        """The bound of the newest cut; None before the first cut."""
        return None if self.cut is None else self.cut.bound

    @property
    def behind(self) -> set[str]:
        """The targets that a round must look at, even if the log has no changes of them."""
        return find_behind(self.cut, self.places, self.inspection)

    def find_place(self, target: str) -> Place | None:
        """The place of a target in the newest cut; None before the first cut."""
        if target in self.places or self.cut is None:
            return self.places.get(target)
        return self.cut.find_place(target)

    def name_targets(self, tables: Iterable[str]) -> set[str]:
        """The names of all targets of some tables, by the quoted names of the tables."""
        return {
            str(t) for table in tables for t in self.lake.choose_targets(TableName.parse(table))
        }

    def is_asked_for(self, target: str) -> bool:
        """Whether the settings ask for a target. They always ask for rows."""
        return target in self.places or Target.parse(target).kind is TargetKind.ROWS

    def was_halted(self, table: str) -> bool:
        """Whether a table was halted at the newest cut."""
        return self.cut is not None and table in self.cut.halted

    def lacks_changes(self, table: str) -> bool:
        """Whether a halted table cannot go on, because the log was trimmed beyond its place."""
        place, trimmed = self.find_place(table), self.log.trimmed
        is_behind = place is not None and trimmed is not None and place.bound < trimmed
        return is_behind and self.was_halted(table)

    def find_halt(self, table: str) -> Halt:
        """The halt that merges last recorded of a table; without a reason if they recorded none."""
        state = read_states(self.lake).get(table)
        known = state is not None and state.state is TableState.HALTED
        if state is None or not known:
            return Halt("", "")
        return Halt(state.reason or "", state.fix or "", state.curable)

    def is_news(self, table: str, place: Place, *, is_halted: bool) -> bool:
        """Whether the place or the halt of a target differs from the newest cut."""
        known = self.find_place(table)
        is_moved = (
            known is None
            or place.bound != known.bound
            or table in self.older
            or table in self.inspection.other_modes
        )
        return is_moved or is_halted != self.was_halted(table)

    def find_origin(self, target: Target, found: FoundTable | None) -> Origin:
        """Decide where the merge of a target begins; warn if the target is older than its cut."""
        name = str(target)
        known, age = self._find_age(name, found)
        origin = find_origin(
            known,
            found,
            # A table that is gone begins where it halted, because older rows have another schema.
            is_halted=target.follows_rows and self.was_halted(name),
            log_begins=None if age is None else find_log_begin(self.log),
            first_cut=None if age is None else find_first_bound(self.lake),
            trimmed=self.log.trimmed,
        )
        if age is not None:
            forget_tables(self.session)
            fields = {"table": name, "reason": age, "is_whole_in_log": origin.missing is None}
            _logger.warning("table is older than its cut", extra={"fields": fields})
        return origin

    def prepare_fold(self, target: Target, found: FoundTable | None) -> Bound | None:
        """Find the bound above which the round folds a target's changes; None means the whole log.

        If the log has lost changes of the table, a whole backfill is queued.
        """
        origin = self.find_origin(target, found)
        if origin.missing is not None:
            _, age = self._find_age(str(target), found)
            lost = "the log does not have all of its changes"
            reason = lost if age is None else f"{age}; {lost}"
            queue_tables(self.lake, [target.table], reason=reason, since=origin.missing)
        return origin.low

    def _find_age(self, target: str, found: FoundTable | None) -> tuple[Place | None, str | None]:
        """The known place of a target, and why the target is older than it; None if it is not."""
        place = self.find_place(target)
        known = None if place is None else know_place(place, self.epochs)
        return known, find_age(known, found)


def find_behind(cut: Cut | None, places: Mapping[str, Place], inspection: Inspection) -> set[str]:
    """The targets that a round must look at, even if the log has no changes of them.

    They are behind the cut, older than it says, or in another mode than the settings choose.
    """
    behind = {name for name, place in places.items() if cut and place.bound < cut.bound}
    return behind | inspection.older.keys() | inspection.other_modes
