"""Merges the tables of one round up to its cut, each in one commit.

All tables are planned first. Then Arrow rewrites files of every table for which it can do it, all
in one job, while Spark merges the other tables, several side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Operation, Position
from spark_jobs.append.plan import plan_entries
from spark_jobs.fast_path.file_rewrite import FileRewrite, rewriting_files
from spark_jobs.fold.plan import TablePlan, as_query, choose_types, plan_table, read_schema
from spark_jobs.fold.rebuild import plan_rebuild
from spark_jobs.lake.cut_plan import Place
from spark_jobs.lake.lake import Bound, Epoch
from spark_jobs.log.ranges import RangeSummary, summarize
from spark_jobs.log.reading import is_after, read_log
from spark_jobs.log.round_log import RoundLog
from spark_jobs.merge.entry_merge import EntryMerge, merge_entries
from spark_jobs.merge.history_merge import HistoryMerge, merge_history
from spark_jobs.merge.history_plan import find_own, plan_history
from spark_jobs.merge.merge import (
    TableMerge,
    merge_by_spark,
    merge_rewritten,
    plan_file_rewrite,
)
from spark_jobs.merge.opened_target import OpenedTarget, open_target
from spark_jobs.merge.round_start import RoundStart
from spark_jobs.schema.evolution import Halt
from spark_jobs.session.failures import Failures
from spark_jobs.session.side_by_side import run_side_by_side
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.older_targets import has_other_mode
from spark_jobs.target.result import TableMergeResult

# How many tables of a round are locked at once. A lock is an open file; a process may have 1024.
_MAX_LOCKS = 200


@dataclass(frozen=True, slots=True)
class TableRound:
    """What a round did to a table: the place that it has now, the merge, and the halt.

    `merged` is None if the table has no change, `halt` if the table follows the log.
    """

    place: Place
    merged: TableMergeResult | None
    halt: Halt | None


# For each table its round, or why Arrow refused it. A table that failed has neither.
_Results: TypeAlias = dict[str, TableRound | str]


def merge_targets(
    start: RoundStart,
    names: Collection[str],
    log: RoundLog,
    cut: Bound,
    *,
    failures: Failures,
    limits: MergeLimits,
) -> dict[str, TableRound]:
    """Merge targets up to a cut, each in one commit. A failed target has no result.

    `log` has the entries above the newest cut.
    """
    results: dict[str, TableRound] = {}
    ordered = sorted(names)
    for first in range(0, len(ordered), _MAX_LOCKS):
        prepared: dict[str, _Prepared | _PreparedAlone] = {}
        with ExitStack() as held:
            for name in ordered[first : first + _MAX_LOCKS]:
                with failures.apart(name):
                    opened = open_target(start, Target.parse(name), cut, held=held)
                    found = None if opened is None else _prepare(start, opened, log, cut, limits)
                    if isinstance(found, (_Prepared, _PreparedAlone)):
                        prepared[name] = found
                    elif found is not None:
                        results[name] = found
            results |= _commit_targets(start.session, prepared, failures=failures, limits=limits)
    return results


def has_sweep(summaries: list[RangeSummary]) -> bool:
    """Whether some range summaries have a sweep."""
    return any(summary.operation == Operation.SWEEP for summary in summaries)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A table whose merge is planned; `rewrite` is the plan for Arrow, or why Arrow cannot."""

    merge: TableMerge
    halt: Halt | None
    rewrite: FileRewrite | str | None


@dataclass(frozen=True, slots=True)
class _PreparedAlone:
    """A target besides the rows whose merge is planned. Spark writes each of them by itself."""

    write: Callable[[], TableMergeResult]
    upper: Bound
    halt: Halt | None


def _prepare(
    start: RoundStart, opened: OpenedTarget, log: RoundLog, cut: Bound, limits: MergeLimits
) -> _Prepared | _PreparedAlone | TableRound:
    """Plan the merge of a target; the result if it has no change."""
    if opened.target.kind is TargetKind.APPEND:
        return _prepare_entries(start, opened, log, cut)
    if opened.target.kind is TargetKind.HISTORY:
        return _prepare_history(start, opened, log, cut)
    return _prepare_table(start, opened, log, cut, limits)


def _prepare_entries(
    start: RoundStart, opened: OpenedTarget, log: RoundLog, cut: Bound
) -> _PreparedAlone | TableRound:
    target, own = opened.target, opened.own
    table = str(target.table)
    low = start.find_origin(target, opened.found).low
    if low != start.low:
        log = RoundLog(start.session, start.log, low, cut, table=table)
    plan = plan_entries(
        log.read,
        target,
        log.list_summaries(table),
        before=None if own is None else read_schema(own),
        relations=start.relations,
        upper=cut,
        choose=choose_types(start.lake, target.table),
    )
    if plan.is_empty:
        return TableRound(opened.stay(plan.upper, low), None, plan.halt)
    merge = EntryMerge(
        start.session, start.lake, _find_epoch(start, plan.upper), plan, opened.delta
    )
    return _PreparedAlone(partial(merge_entries, merge), plan.upper, plan.halt)


def _prepare_history(
    start: RoundStart, opened: OpenedTarget, log: RoundLog, cut: Bound
) -> _PreparedAlone | TableRound:
    planned = plan_history(start, opened, log, cut)
    upper, halt = planned.plan.last.upper, planned.plan.halt
    if planned.is_empty:
        return TableRound(opened.stay(upper, planned.beginning.low), None, halt)
    merge = HistoryMerge(
        start.session,
        start.lake,
        opened.target,
        _find_epoch(start, upper),
        planned.plan,
        opened.delta,
        is_own=find_own(opened) is not None,
        beginning=planned.beginning,
    )
    return _PreparedAlone(partial(merge_history, merge), upper, halt)


def _find_epoch(start: RoundStart, bound: Bound) -> Epoch:
    return next(epoch for epoch in start.epochs if epoch.number == bound.epoch)


def _prepare_table(
    start: RoundStart, opened: OpenedTarget, log: RoundLog, cut: Bound, limits: MergeLimits
) -> _Prepared | TableRound:
    name, delta, own = opened.target.table, opened.delta, opened.own
    table = str(name)
    low = start.prepare_fold(opened.target, opened.found)
    if low != start.low:
        log = RoundLog(start.session, start.log, low, cut, table=table)
    summaries = log.list_summaries(table)
    replan = partial(
        plan_table,
        table=name,
        before=None if own is None else read_schema(own),
        relations=start.relations,
        upper=cut,
        choose=choose_types(start.lake, name),
    )
    first_plan = plan = replan(log.read, summaries=summaries)
    # A plan from the change that halted the table leaves out older rows. `prepare_fold` queues a
    # backfill of them if the table is older than its cut, but not if no merge ever made it.
    if own is None and start.was_halted(table) and table in start.older:
        plan = _plan_from_halt(plan, log.read(), replan)
    lacks_changes, place = start.lacks_changes(table), start.find_place(table)
    if lacks_changes and place is not None:
        # The changes that are left must not be folded: the log lacks those before them.
        plan = replace(plan, upper=place.bound)
    renewed = None
    if (plan.halt is not None or lacks_changes) and has_sweep(summaries):
        read_above = partial(read_log, start.session, start.log, upper=cut)
        renewed = plan_rebuild(
            plan, read_above, replan, entries=log.read(), trimmed=start.log.trimmed
        )
        plan = renewed or plan
    if lacks_changes and place is not None and renewed is None:
        kept = place if own is not None else Place(place.bound, None)
        return TableRound(kept, None, start.find_halt(table))
    changes_mode = own is not None and has_other_mode(start.lake, opened.target, own)
    if plan.is_empty and (plan.halt is not None or not changes_mode):
        return TableRound(opened.stay(plan.upper, low), None, plan.halt)
    epoch = _find_epoch(start, plan.upper)
    above = log.range.up_to(plan.upper) if plan is first_plan else None
    merge = TableMerge(start.session, start.lake, epoch, plan, delta, above, limits)
    return _Prepared(merge, plan.halt, plan_file_rewrite(merge))


def _commit_targets(
    session: SparkSession,
    planned: Mapping[str, _Prepared | _PreparedAlone],
    *,
    failures: Failures,
    limits: MergeLimits,
) -> dict[str, TableRound]:
    """Commit targets side by side: those that Arrow may rewrite as one job, each other as its own.

    If a task refuses a table, Spark merges it after the others.
    """
    prepared = {name: one for name, one in planned.items() if isinstance(one, _Prepared)}
    alone = {name: one for name, one in planned.items() if isinstance(one, _PreparedAlone)}
    merge = partial(_merge_by_spark, prepared, failures=failures)
    rewrites = [one.rewrite for one in prepared.values() if isinstance(one.rewrite, FileRewrite)]
    rewrite = partial(
        _merge_by_arrow, session, rewrites, prepared, failures=failures, limits=limits
    )
    jobs = [
        *(
            partial(merge, table, one.rewrite)
            for table, one in prepared.items()
            if not isinstance(one.rewrite, FileRewrite)
        ),
        *(partial(_write_alone, name, one, failures=failures) for name, one in alone.items()),
    ]
    results = _join(run_side_by_side(session, [rewrite, *jobs] if rewrites else jobs))
    refused = [partial(merge, *one) for one in results.items() if isinstance(one[1], str)]
    results |= _join(run_side_by_side(session, refused))
    return {t: result for t, result in results.items() if isinstance(result, TableRound)}


def _join(results: Sequence[_Results]) -> _Results:
    return {table: result for some in results for table, result in some.items()}


def _merge_by_arrow(
    session: SparkSession,
    rewrites: Sequence[FileRewrite],
    prepared: Mapping[str, _Prepared],
    *,
    failures: Failures,
    limits: MergeLimits,
) -> _Results:
    """Let Arrow rewrite files of tables, and commit each table; the reason where Arrow refuses."""
    results: _Results = {}
    with rewriting_files(session, rewrites, limits) as rewritten:
        for table, result in rewritten.items():
            if isinstance(result, str):
                results[table] = result
                continue
            with failures.apart(table):
                merged = merge_rewritten(prepared[table].merge, result)
                results[table] = _place_table(prepared[table], merged)
    return results


def _merge_by_spark(
    prepared: Mapping[str, _Prepared], table: str, refusal: str | None, *, failures: Failures
) -> _Results:
    """Merge one table by Spark; no result if it failed."""
    with failures.apart(table):
        merged = merge_by_spark(prepared[table].merge, refusal=refusal)
        return {table: _place_table(prepared[table], merged)}
    return {}


def _write_alone(name: str, prepared: _PreparedAlone, *, failures: Failures) -> _Results:
    """Merge one target besides the rows; no result if it failed."""
    with failures.apart(name):
        upper, merged = prepared.upper, prepared.write()
        return {name: TableRound(Place(upper, merged.version, upper), merged, prepared.halt)}
    return {}


def _place_table(prepared: _Prepared, merged: TableMergeResult) -> TableRound:
    upper = prepared.merge.plan.upper
    return TableRound(Place(upper, merged.version, upper), merged, prepared.halt)


def _plan_from_halt(plan: TablePlan, log: DataFrame, replan: Callable[..., TablePlan]) -> TablePlan:
    """Plan a halted table that is gone or replaced, from the change that halted it.

    The transaction of that change may begin with changes under the old schema; these are left out.
    """
    begins_at: Position | None = None
    while plan.is_empty and plan.halted_at not in {None, begins_at}:
        begins_at = plan.halted_at
        assert begins_at is not None
        log = log.where(is_after(replace(begins_at, seq=begins_at.seq - 1)))
        summaries = summarize(log.where(F.col("table") == str(plan.table)))
        plan = replan(as_query(log), summaries=summaries)
    return plan
