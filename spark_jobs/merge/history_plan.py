"""Plans the merge of a history: from which versions it begins, and how far it follows the log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from deltalake import DeltaTable

from spark_jobs.fold.plan import choose_types, read_schema
from spark_jobs.history.plan import HistoryPlan, HistoryRange, describe_gap, plan_versions
from spark_jobs.lake.lake import Bound
from spark_jobs.log.reading import read_log
from spark_jobs.log.round_log import RoundLog
from spark_jobs.merge.opened_target import OpenedTarget
from spark_jobs.merge.round_start import RoundStart
from spark_jobs.query.history_beginning import HistoryBeginning, find_beginning


@dataclass(frozen=True, slots=True)
class PlannedHistory:
    """The plan of a history's merge, and what the history has before."""

    plan: HistoryPlan
    beginning: HistoryBeginning

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.plan.is_empty and self.beginning.versions is None


def find_own(opened: OpenedTarget) -> DeltaTable | None:
    """The Delta table of a history; None if it has no merged version, or is another writer's.

    A merge that died may have made the table, and not filled it.
    """
    has_bound = opened.found is not None and opened.found.bound is not None
    return opened.own if has_bound else None


def plan_history(
    start: RoundStart, opened: OpenedTarget, log: RoundLog, cut: Bound
) -> PlannedHistory:
    """Plan the merge of a history up to a cut."""
    target, own = opened.target, find_own(opened)
    name, table = str(target), str(target.table)
    if own is not None:
        base = HistoryBeginning(start.prepare_fold(target, opened.found))
    else:
        base = find_beginning(start.session, start.lake, start.log, target.table)
    begun = None if base.shape is None else base.shape.schema
    before = begun if own is None else read_schema(own)
    if base.low != start.low:
        log = RoundLog(start.session, start.log, base.low, cut, table=table)
    lost, trimmed = None, start.log.trimmed
    if own is not None and base.low is not None and trimmed is not None and base.low < trimmed:
        halted = start.was_halted(name)
        halt = start.find_halt(name) if halted else describe_gap(target.table, base.low)
        lost = (base.low, halt)
    plan = plan_versions(
        HistoryRange(
            target.table,
            log.read,
            partial(read_log, start.session, start.log, upper=cut),
            log.list_summaries(table),
            start.relations,
            cut,
            choose_types(start.lake, target.table),
            start.log.trimmed,
        ),
        before,
        lost=lost,
    )
    return PlannedHistory(plan, base)
