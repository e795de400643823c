"""What a round starts from: the newest cut, the log, and the tables that are older than the cut."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc_core.table_states import TableState
from cdc_core.vocabulary import Relation, TableName
from spark_jobs.lake.cut_plan import FoundTable, Place, find_age, find_origin
from spark_jobs.lake.lake import Bound, Epoch, Lake
from spark_jobs.lake.ledger import Cut, find_first_bound, queue_tables, read_states
from spark_jobs.log.files import LogFiles
from spark_jobs.schema.evolution import Halt
from spark_jobs.session.session import forget_tables
from spark_jobs.target.older_tables import Inspection, find_log_begin, know_place

_logger = logging.getLogger("walgate.merge")


@dataclass(frozen=True, slots=True)
class RoundStart:
    """What a round starts from; `inspection` says which tables are not as the cut says."""

    session: SparkSession
    lake: Lake
    log: LogFiles
    epochs: list[Epoch]
    relations: dict[int, Relation]
    cut: Cut | None
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
        """The tables that a round must look at, even if the log has no changes of them."""
        return find_behind(self.cut, self.inspection)

    def find_place(self, table: str) -> Place | None:
        """The place of a table in the newest cut; None before the first cut."""
        return None if self.cut is None else self.cut.find_place(table)

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
        """Whether the place or the halt of a table differs from the newest cut."""
        known = self.find_place(table)
        is_moved = known is None or place.bound != known.bound or table in self.older
        return is_moved or is_halted != self.was_halted(table)

    def prepare_fold(self, name: TableName, found: FoundTable | None) -> Bound | None:
        """Prepare the fold of a table: warn if it is older than its cut, and queue what it lacks.

        Returns the bound above which the round folds the table's changes; None means from the
        start of the log. If the log has lost changes of the table, a whole backfill is queued.
        """
        table, lake = str(name), self.lake
        place = self.find_place(table)
        known = None if place is None else know_place(place, self.epochs)
        age = find_age(known, found)
        origin = find_origin(
            known,
            found,
            is_halted=self.was_halted(table),
            log_begins=None if age is None else find_log_begin(self.log),
            first_cut=None if age is None else find_first_bound(lake),
            trimmed=self.log.trimmed,
        )
        if age is not None:
            forget_tables(self.session)
            fields = {"table": table, "reason": age, "is_whole_in_log": origin.missing is None}
            _logger.warning("table is older than its cut", extra={"fields": fields})
        if origin.missing is not None:
            lost = "the log does not have all of its changes"
            reason = lost if age is None else f"{age}; {lost}"
            queue_tables(lake, [name], reason=reason, since=origin.missing)
        return origin.low


def find_behind(cut: Cut | None, inspection: Inspection) -> set[str]:
    """The tables that a round must look at, even if the log has no changes of them.

    They are behind the cut, older than it says, or in another mode than the settings choose.
    """
    behind = {t for t, bound in cut.merged.items() if bound < cut.bound} if cut else set()
    return behind | inspection.older.keys() | inspection.other_modes
