"""Plans how far a history can follow a log range.

A history halts where the rows of its table halt, and the same backfill ends the halt. Unlike the
rows, it keeps what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.vocabulary import Operation, Relation, TableName
from spark_jobs.fold.announcements import EntriesQuery
from spark_jobs.fold.plan import TablePlan, as_query, plan_table
from spark_jobs.fold.rebuild import list_renewed
from spark_jobs.lake.lake import Bound
from spark_jobs.log.ranges import RangeSummary, summarize
from spark_jobs.schema.evolution import Choose, Halt, TableSchema


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """What a log range does to a history.

    `first` has the changes that the history can follow. Each plan in `rebuilt` has those from a
    backfill on that ends the halt of the plan before it. Changes between the two are missing.
    `relations` has all announcements.
    """

    first: TablePlan
    rebuilt: tuple[TablePlan, ...] = ()
    relations: tuple[Relation, ...] = ()

    @property
    def last(self) -> TablePlan:
        """The plan whose end is that of the history."""
        return (self.first, *self.rebuilt)[-1]

    @property
    def halt(self) -> Halt | None:
        """Why the history halts in the range."""
        return self.last.halt

    @property
    def is_empty(self) -> bool:
        """Whether the log range has no change that the history can follow."""
        return self.first.is_empty and not self.rebuilt


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """The log range of a history, and what is known of it.

    `read` makes a query of the entries up to `upper`, and `summaries` are those of the table.
    `read_above` reads the log above another bound. The log lacks entries up to `trimmed`.
    """

    table: TableName
    read: EntriesQuery
    read_above: Callable[[Bound], DataFrame]
    summaries: list[RangeSummary]
    relations: Mapping[int, Relation]
    upper: Bound
    choose: Choose
    trimmed: Bound | None


def plan_versions(
    range_: HistoryRange, before: TableSchema | None, *, lost: tuple[Bound, Halt] | None
) -> HistoryPlan:
    """Plan a log range for a history that has the schema `before`; None if it has no version yet.

    If the log lacks changes since the history halted, `lost` is where and why it halted. Then only
    a backfill lets it go on.
    """
    replan = partial(
        plan_table,
        table=range_.table,
        relations=range_.relations,
        upper=range_.upper,
        choose=range_.choose,
    )
    summaries = range_.summaries
    if lost is None:
        first = replan(range_.read, summaries=summaries, before=before)
    else:
        first = replan(range_.read, summaries=[], before=before)
        first = replace(first, upper=lost[0], halt=lost[1])
    rebuilt: list[TablePlan] = []
    if any(one.operation == Operation.SWEEP for one in summaries):
        last: TablePlan | None = first
        while last is not None and last.halt is not None:
            last = _plan_next(range_, last, replan)
            rebuilt += [] if last is None else [last]
    return HistoryPlan(first, tuple(rebuilt), tuple(range_.relations.values()))


def describe_gap(table: TableName, low: Bound) -> Halt:
    """The halt of a history of which the log no longer has all changes, although it had no halt.

    Its mode was taken away for a while, or somebody has put an older copy in its place.
    """
    return Halt(
        f"the history is only at {low.lsn}, and the log no longer has the changes since then",
        "nothing under Dagster, which backfills the table by itself; otherwise run"
        f" `walgate backfill '{table}'`",
        curable=True,
    )


def _plan_next(
    range_: HistoryRange, halted: TablePlan, replan: Callable[..., TablePlan]
) -> TablePlan | None:
    """Plan the changes from the first backfill on that ends a halt; None if none does."""
    # As if rounds had ended between the backfills, the one that ends first counts.
    listed = list_renewed(
        halted,
        range_.read_above,
        replan,
        entries=range_.read(),
        trimmed=range_.trimmed,
        is_by_end=True,
    )
    renewed = next(listed, None)
    if renewed is None:
        return None
    # The backfill may have begun before the halt. The history has those changes already.
    bound = F.struct(
        F.lit(halted.upper.epoch).alias("epoch"),
        F.lit(int(halted.upper.lsn)).cast("long").alias("end_lsn"),
    )
    later = renewed.read().where(F.struct("epoch", "end_lsn") > bound)
    planned = replan(as_query(later), summaries=summarize(later), before=None)
    return planned if planned.upper > halted.upper else None
