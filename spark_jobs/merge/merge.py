"""Applies a table plan to its Delta table: one commit has the rows and the bound that they reach.

`write_plan` chooses the way. This module gathers the facts for it, then writes the table.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import types as T

from cdc_core.crash_points import reach
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from cdc_core.targets import Target
from cdc_core.vocabulary import Operation, TableName
from spark_jobs.delta.attempts import Attempt, attempting
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.delta.direct_parquet import allows_direct_commits, read_rows, write_files
from spark_jobs.delta.file_writer import WrittenFile
from spark_jobs.fast_path.append_only import is_addition
from spark_jobs.fast_path.file_rewrite import FileRewrite, RewrittenFiles, plan_rewrite
from spark_jobs.fast_path.unshared_reads import UnsharedReads, add_unshared, split_unshared
from spark_jobs.fold.outcome import Outcome, fold_plan, fold_plan_and_last_rows
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.removals import RemovalPoints
from spark_jobs.fold.sweeps import Sweep, keep_effective_sweeps, may_hold_older
from spark_jobs.lake.lake import Epoch, Lake, Losses, count_rows, read_losses
from spark_jobs.log.files import LogRange
from spark_jobs.merge.merge_by_key import merge_by_key
from spark_jobs.merge.write_plan import FoldFacts, WriteFacts, choose_write
from spark_jobs.modes.mode import Mode
from spark_jobs.modes.registry import choose_mode, find_mode
from spark_jobs.modes.table_rows import TableRemoval, apply_rows, count_present
from spark_jobs.target.commits import move_bound, write_rows
from spark_jobs.target.creation import allow_types, create_target
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.losses import count_added, count_losses
from spark_jobs.target.result import TableMergeResult, WritePlan
from spark_jobs.target.target_table import TargetTable

_logger = logging.getLogger("walgate.merge")


@dataclass(frozen=True, slots=True)
class TableMerge:
    """A table plan with changes, the table that it is for, and the limits of the merge.

    The caller holds the table's lock. `existing` is None if the table does not exist. A plan
    without a schema before it replaces all rows of the table. `above` is the log range up to the
    plan's end, if the plan contains every change of the table in it; otherwise None.
    """

    session: SparkSession
    lake: Lake
    epoch: Epoch
    plan: TablePlan
    existing: DeltaTable | None
    above: LogRange | None
    limits: MergeLimits

    @property
    def path(self) -> LakePlace:
        """The folder of the table."""
        return self.lake.locate(self.plan.table)

    @property
    def mode(self) -> Mode:
        """The mode of the table."""
        return choose_mode(self.lake, self.plan.table)

    @property
    def changes_mode(self) -> bool:
        """Whether the table was written in another mode."""
        existing = None if self.plan.before is None else self.existing
        return existing is not None and find_mode(existing) != self.mode


def plan_file_rewrite(merge: TableMerge) -> FileRewrite | str | None:
    """Plan the rewrite of files by Arrow; the reason if Arrow cannot do it.

    None if the table is new or replaced, or if the facts ask for another way.
    """
    if merge.existing is None or merge.above is None:
        return None
    if not merge.mode.has_quick_ways:
        return f"only Spark writes a table of mode {merge.mode.name}"
    facts = _gather_facts(merge, refusal=None)
    if choose_write(facts, merge.limits) is not WritePlan.REWRITE_FILES:
        return None
    return plan_rewrite(merge.path, merge.existing, merge.plan, merge.above, merge.limits)


def merge_rewritten(merge: TableMerge, rewritten: RewrittenFiles) -> TableMergeResult:
    """Commit files that Arrow rewrote for a table plan.

    Raises: DeltaError if another commit came between; MergeError if the disk refuses it; OSError.
    """
    began = time.monotonic()
    path, before, plan = merge.path, merge.existing, merge.plan
    assert before is not None
    # Files are rewritten only if no value is lost in the table before or after.
    lossy = dict.fromkeys(read_losses(before) or (), 0)
    reach("before_merge_commit")
    change = FileChange(rewritten.attempt, rewritten.added, rewritten.removed)
    commit_files(path, before, change, epoch=merge.epoch, reached=plan.upper, lossy=lossy)
    reach("after_merge_commit")
    # No other commit came between: delta-rs would have refused this one.
    version = before.version() + 1
    rows = count_rows(path, before) + rewritten.inserted - rewritten.deleted
    seconds = rewritten.seconds + time.monotonic() - began
    return TableMergeResult(
        version,
        rows,
        rewritten.inserted,
        rewritten.updated,
        rewritten.deleted,
        lossy,
        seconds,
        WritePlan.REWRITE_FILES,
    )


def _warn_of_dropped(target: TargetTable, table: TableName, reason: str) -> None:
    """Say that a table loses the deleted rows that it kept, if it has any."""
    kept = find_mode(target.table).kept
    if kept is not None:
        stored = read_rows(target.session, target.path, target.table)
        count = stored.where(f"`{kept.mark}`").count()
        if count:
            fields = {"table": str(table), "rows": count, "reason": reason}
            _logger.warning("deleted rows dropped", extra={"fields": fields})


def merge_by_spark(merge: TableMerge, *, refusal: str | None) -> TableMergeResult:
    """Fold a table plan by Spark and commit it.

    `refusal` says why Arrow cannot rewrite files; None if that was not looked at.
    Raises: DeltaError if another commit came between; MergeError if the disk refuses it; OSError.
    """
    began = time.monotonic()
    session, plan, path, mode = merge.session, merge.plan, merge.path, merge.mode
    assert plan.schema is not None
    fields = mode.list_fields(plan.schema)
    if merge.existing is None:
        before = create_target(session, merge.lake, Target(plan.table), fields)
    else:
        before = allow_types(session, path, merge.existing, fields)
    merge = replace(merge, existing=before)
    target = TargetTable(session, path, before, plan.schema, mode)
    if merge.changes_mode and mode.kept is None:
        _warn_of_dropped(target, plan.table, "the settings ask for no deleted rows any more")
    facts = _gather_facts(merge, refusal=refusal or "it was not tried")
    with attempting(path, version=before.version() + 1) as attempt:
        written = _write(merge, target, facts, attempt)
    reach("after_merge_commit")
    rows = count_present(session, path, open_delta(path, version=written.version), mode)
    seconds = time.monotonic() - began
    return replace(written, rows=rows, seconds=seconds, refusal=refusal)


def _gather_facts(merge: TableMerge, *, refusal: str | None) -> WriteFacts:
    plan, existing = merge.plan, merge.existing
    reads = [one.entries for one in plan.summaries if one.operation == Operation.READ]
    return WriteFacts(
        sum(summary.entries for summary in plan.summaries),
        sum(reads),
        0
        if existing is None
        else sum(pa.table(existing.get_add_actions())["size_bytes"].to_pylist()),
        replaces_all=plan.before is None or plan.truncated_at is not None,
        fills_new_columns=plan.has_default_to_apply,
        changes_schema=plan.schema != plan.before,
        changes_mode=merge.changes_mode,
        refusal=refusal,
    )


def _write(
    merge: TableMerge, target: TargetTable, facts: WriteFacts, attempt: Attempt
) -> TableMergeResult:
    """Fold what must be folded, choose the way, and commit; the result has no row count yet."""
    unshared = None
    if target.mode.has_quick_ways:
        few = merge.limits.unshared_reads
        unshared = split_unshared(merge.session, merge.plan, merge.above, attempt, few_reads=few)
    plan, epoch, before = merge.plan, merge.epoch, target.table
    base = None if facts.replaces_all else target
    is_counted = plan.before is not None and not facts.fills_new_columns
    known = read_losses(before) if is_counted else None
    removals = RemovalPoints()
    if target.mode.kept is None:
        outcome = _fold_others(plan, base, unshared)
    else:
        removals = RemovalPoints.of(plan)
        had = None if plan.before is None else target.rows
        outcome = fold_plan_and_last_rows(plan, removals, had)
    removal = TableRemoval.of(plan, removals)
    plan = _drop_idle_sweeps(plan, base, before)
    if not removal.is_rebuild:
        removal = replace(removal, swept=plan.swept)
    only_adds = (
        unshared is not None
        and not facts.changes_mode
        and allows_direct_commits(before)
        and is_addition(plan, base, unshared, outcome)
    )
    if unshared is not None and not only_adds:
        assert plan.schema is not None
        outcome = add_unshared(outcome, unshared, plan.schema)
    arrived, departed = (0, 0) if outcome is None else (outcome.arrived, outcome.departed)
    fold = FoldFacts(arrived, departed, sweeps_rows=bool(plan.swept), only_adds=only_adds)
    way = choose_write(replace(facts, fold=fold), merge.limits)
    version, inserted, updated, deleted = before.version() + 1, 0, 0, 0
    if way is WritePlan.APPEND:
        assert unshared is not None
        added_rows = _AddedRows(unshared, outcome, base, known)
        inserted, deleted, lossy = _append(merge, target, added_rows, attempt)
        return TableMergeResult(version, 0, inserted, 0, deleted, lossy, 0.0, way)
    assert outcome is not None
    lossy = count_losses(outcome, plan, _rows_of(base), known)
    reach("before_merge_commit")
    match way:
        case WritePlan.MOVE_BOUND:
            move_bound(target, epoch, plan, lossy)
        case WritePlan.REWRITE:
            updated, deleted = _replace(target, outcome, epoch, plan, lossy, removal)
            inserted = outcome.arrived - updated
        case _:
            assert way is WritePlan.MERGE
            version, done = merge_by_key(target, merge.lake, epoch, plan, outcome, lossy, removal)
            inserted, updated, deleted = done.inserted, done.updated, done.deleted
            lossy = done.lossy
    return TableMergeResult(version, 0, inserted, updated, deleted, lossy, 0.0, way)


def _fold_others(
    plan: TablePlan, base: TargetTable | None, unshared: UnsharedReads | None
) -> Outcome | None:
    """Fold all steps of a plan except its unshared reads; None if it has no others."""
    others = None if unshared is None else unshared.others
    if unshared is not None and others is None:
        return None
    return fold_plan(plan, _rows_of(base), others)


def _drop_idle_sweeps(plan: TablePlan, base: TargetTable | None, before: DeltaTable) -> TablePlan:
    """Keep only the sweeps that remove a row of the table; the fold has applied all to new rows."""
    reaching: tuple[Sweep, ...] = ()
    if base is not None and may_hold_older(before, plan.swept):
        assert plan.schema is not None
        reaching = keep_effective_sweeps(base.rows, plan.schema, plan.swept)
    return replace(plan, swept=reaching)


def _rows_of(base: TargetTable | None) -> DataFrame | None:
    return None if base is None else base.rows


@dataclass(frozen=True, slots=True)
class _AddedRows:
    """Unshared reads and the outcome of other changes; without a `base` they replace the table.

    `known` are the counts of lost values before, if counted.
    """

    unshared: UnsharedReads
    outcome: Outcome | None
    base: TargetTable | None
    known: Losses | None


def _append(
    merge: TableMerge, target: TargetTable, added_rows: _AddedRows, attempt: Attempt
) -> tuple[int, int, Losses]:
    """Add rows to a table; return how many came and how many went, and the counts of lost values.

    Arrow types no lost value, so only files that Spark wrote, and that may have a `_raw`, are
    counted.
    """
    plan, path, base, before = merge.plan, target.path, added_rows.base, target.table
    fields = target.fields
    added = _write_added(attempt, target, added_rows)
    rows = None
    typed = added_rows.unshared.typed
    by_spark = [file for file in added if typed is None or file not in typed.files]
    paths = [file.path.uri for file in by_spark if file.may_hold("_raw")]
    if paths:
        rows = merge.session.read.schema(T.StructType(fields)).parquet(*paths)
    lossy = count_added(rows, target.schema, _rows_of(base), added_rows.known)
    change = FileChange(attempt, added, replaces_all=base is None, fields=fields)
    reach("before_merge_commit")
    commit_files(path, before, change, epoch=merge.epoch, reached=plan.upper, lossy=lossy)
    had = count_rows(path, before)
    has = count_rows(path, open_delta(path, version=before.version() + 1))
    return (has, had, lossy) if base is None else (has - had, 0, lossy)


def _write_added(
    attempt: Attempt, target: TargetTable, added_rows: _AddedRows
) -> list[WrittenFile]:
    """Write added rows to files of an attempt; Arrow has written its files already."""
    unshared, outcome = added_rows.unshared, added_rows.outcome
    add = partial(apply_rows, None, schema=target.schema, mode=target.mode, removal=TableRemoval())
    more = None if outcome is None else add(outcome.rows, carried=outcome.carried)
    if unshared.typed is not None:
        return [*unshared.typed.files, *([] if more is None else write_files(more, attempt))]
    rows = add(unshared.read(), carried=frozenset())
    return write_files(rows if more is None else rows.unionByName(more), attempt)


def _replace(  # noqa: PLR0917 - What is written, where, and what its commit says.
    target: TargetTable,
    outcome: Outcome,
    epoch: Epoch,
    plan: TablePlan,
    lossy: Losses,
    removal: TableRemoval,
) -> tuple[int, int]:
    """Write the table whole; return how many of its rows were updated and deleted."""
    stored = None
    if target.mode.kept is not None:
        stored = target.reshaped if removal.is_rebuild else target.stored
        if stored is None:
            _warn_of_dropped(target, plan.table, "the key of the source's table has changed")
    elif not removal.is_rebuild and not removal.is_truncate:
        stored = target.stored
    touched = Observation()
    rows = apply_rows(
        stored,
        outcome.rows,
        target.schema,
        outcome.carried,
        mode=target.mode,
        removal=removal,
        touched=touched,
    )
    write_rows(rows, target, target.table, "overwrite", epoch, plan, lossy)
    if stored is None:
        return 0, count_rows(target.path, target.table)
    return touched.get["updated"], touched.get["deleted"]
