"""Applies a table plan to its Delta table: one commit has the rows and the bound that they reach.

The merge takes the first of these ways that fits:
- few changes of a small table: Arrow alone, without a Spark job (`arrow_merge`);
- reads of a backfill, if the table has no row with any of the keys: append;
- no change of a row or a column, as at the end of a backfill: a commit of the bound alone;
- first rows, TRUNCATE, values for rows older than a new column, a small table: write it whole;
- anything else: a MERGE by key. Ranges of the first key column let Delta skip files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cdc_core.crash_points import reach
from spark_jobs.delta.attempts import clear_attempts
from spark_jobs.delta.direct_parquet import commit_files, is_ours, write_files
from spark_jobs.fast_path.append_only import is_addition
from spark_jobs.fast_path.arrow_merge import merge_by_arrow
from spark_jobs.fast_path.unshared_reads import UnsharedReads, add_unshared, splitting_unshared
from spark_jobs.fold.outcome import Outcome, fold_plan
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import (
    apply_rows,
    carry,
    insert,
    match_names,
    table_fields,
)
from spark_jobs.fold.steps import id_names
from spark_jobs.fold.sweeps import Sweep, is_swept, keep_effective_sweeps, may_hold_older
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import (
    Epoch,
    Lake,
    Losses,
    count_rows,
    may_hold,
    read_losses,
)
from spark_jobs.lake.ledger import queue_tables
from spark_jobs.log.round_log import RoundLog
from spark_jobs.merge.guard import Written, find_damage, is_newer, rewrite_table
from spark_jobs.target.commits import (
    OwnCommit,
    carry_bound,
    find_own_commit,
    move_bound,
    record_losses,
    write_rows,
)
from spark_jobs.target.creation import allow_types, create_table, require_table
from spark_jobs.target.losses import count_added, count_losses
from spark_jobs.target.result import TableMergeResult
from spark_jobs.target.target_table import TargetTable

_COUNTS = ("Inserted", "Updated", "Deleted")
# Delta skips files by literal ranges only. More ranges cost more planning.
_KEY_RANGES = 32
# A MERGE takes 3 s, however little it changes. To write 100,000 rows of 40 bytes takes 1 s. A MERGE
# shuffles arriving rows twice more: with as many as the table has, to write all rows is cheaper.
SMALL_TABLE_BYTES = 4 << 20
_FEW_ROWS = 25_000


def merge_plan(
    session: SparkSession,
    lake: Lake,
    epoch: Epoch,
    plan: TablePlan,
    *,
    there: DeltaTable | None,
    log: RoundLog | None,
) -> TableMergeResult:
    """Commit a table plan to its table, whose lock the caller holds; create it if `there` is None.

    A plan without a schema before it replaces all rows of the table. `log` is the log range, if the
    plan contains every change of the table in it up to the plan's end; otherwise None.
    """
    assert plan.schema is not None
    began = time.monotonic()
    path = lake.locate(plan.table)
    clear_attempts(path)
    if there is not None and log is not None and _is_small(there, 0):
        merged = merge_by_arrow(path, there, epoch, plan, log.in_memory, began=began)
        if merged is not None:
            return merged
    if there is None:
        before = create_table(session, lake, plan.table, plan.schema)
    else:
        before = allow_types(session, path, there, plan.schema)
    above = None if log is None else log.range.up_to(plan.upper)
    with splitting_unshared(session, plan, above, path) as unshared:
        return _commit(session, lake, before, epoch, plan, unshared=unshared, began=began)


def _commit(
    session: SparkSession,
    lake: Lake,
    before: DeltaTable,
    epoch: Epoch,
    plan: TablePlan,
    *,
    unshared: UnsharedReads | None,
    began: float,
) -> TableMergeResult:
    assert plan.schema is not None
    path = lake.locate(plan.table)
    replaces_all = plan.before is None or plan.truncated_at is not None
    base = None if replaces_all else TargetTable(session, path, before, plan.schema)
    is_counted = plan.before is not None and not plan.has_default_to_apply
    known = read_losses(before) if is_counted else None
    others = None if unshared is None else unshared.others
    outcome = None
    if unshared is None or others is not None:
        outcome = fold_plan(plan, _read(base), others)
    # The arriving rows are swept. Keep the sweeps only if they remove a row of the table.
    reaching: tuple[Sweep, ...] = ()
    if base is not None and may_hold_older(before, plan.swept):
        reaching = keep_effective_sweeps(base.rows, plan.schema, plan.swept)
    plan = replace(plan, swept=reaching)
    assert plan.schema is not None
    may_add = base is None or is_ours(before)
    if unshared is not None and may_add and is_addition(plan, base, unshared, outcome):
        added = _Addition(unshared, outcome, None if base is None else before)
        lossy = _add(session, path, before, epoch, plan, added=added, known=known)
        after = require_table(path)
        rows, gone = count_rows(path, after), count_rows(path, before)
        inserted, deleted = (rows, gone) if base is None else (rows - gone, 0)
        seconds = time.monotonic() - began
        return TableMergeResult(after.version(), rows, inserted, 0, deleted, lossy, seconds)
    if unshared is not None:
        outcome = add_unshared(outcome, unshared, plan.schema)
    assert outcome is not None
    is_small = _is_small(before, outcome.arrived)
    is_replaced = replaces_all or plan.has_default_to_apply or is_small
    lossy = count_losses(outcome, plan, _read(base), known)
    made = before.version() + 1
    reach("before_merge_commit")
    if base is not None and _changes_nothing(plan, outcome):
        move_bound(base, path, before, epoch, plan, lossy)
        inserted, updated, deleted = 0, 0, 0
    elif is_replaced:
        updated, deleted = _replace(_read(base), outcome, path, before, epoch, plan, lossy)
        if replaces_all:
            deleted = count_rows(path, before)
        inserted = outcome.arrived - updated
    else:
        made, written = _merge_guarded(session, lake, before, epoch, plan, outcome, lossy)
        inserted, updated, deleted = written.inserted, written.updated, written.deleted
        lossy = written.lossy
    reach("after_merge_commit")
    after = DeltaTable(path, version=made)
    rows, seconds = count_rows(path, after), time.monotonic() - began
    return TableMergeResult(after.version(), rows, inserted, updated, deleted, lossy, seconds)


def _read(base: TargetTable | None) -> DataFrame | None:
    return None if base is None else base.rows


@dataclass(frozen=True, slots=True)
class _Addition:
    """Unshared reads and the outcome of other changes; without a `base` they replace the table."""

    unshared: UnsharedReads
    outcome: Outcome | None
    base: DeltaTable | None

    @property
    def mode(self) -> str:
        return "overwrite" if self.base is None else "append"


def _add(
    session: SparkSession,
    path: Path,
    before: DeltaTable,
    epoch: Epoch,
    plan: TablePlan,
    *,
    added: _Addition,
    known: Losses | None,
) -> Losses:
    """Add rows to a table; return its counts of lost values. `known` are those before, if counted.

    Spark counts the rows after they are written, and only if their files may have a `_raw`.
    """
    assert plan.schema is not None
    base = added.base
    reach("before_merge_commit")
    _write_added(path, before, epoch, plan, added)
    reach("after_merge_commit")
    had = dict.fromkeys(known or (), 0) if base is None else known
    if had is not None and not may_hold(require_table(path), "_raw", besides=base):
        lossy = had
    else:
        is_known = base is not None and known is not None
        since = min(summary.first for summary in plan.summaries) if is_known else None
        table = session.read.format("delta").load(str(path))
        lossy = count_added(table, plan.schema, known, since=since)
    record_losses(session, path, plan.table, lossy)
    return lossy


def _write_added(
    path: Path, before: DeltaTable, epoch: Epoch, plan: TablePlan, added: _Addition
) -> None:
    schema, unshared, outcome = plan.schema, added.unshared, added.outcome
    assert schema is not None
    more = None
    if outcome is not None:
        more = apply_rows(None, outcome.rows, schema, outcome.carried, swept=())
    if unshared.typed is not None and is_ours(before):
        files = unshared.typed.move(path) + ([] if more is None else write_files(more, path))
        reached, fields = (epoch, plan.upper), table_fields(schema)
        commit_files(path, before, files, added.mode, reached=reached, lossy=None, fields=fields)
        return
    rows = apply_rows(None, unshared.read(), schema, frozenset(), swept=())
    rows = rows if more is None else rows.unionByName(more)
    write_rows(rows, path, before, added.mode, epoch, plan, None)


def _changes_nothing(plan: TablePlan, outcome: Outcome) -> bool:
    """Whether a table plan that does not replace the table changes no row and no column."""
    is_same = plan.schema == plan.before
    return is_same and not (plan.swept or outcome.arrived or outcome.departed)


def _is_small(table: DeltaTable, arrived: int) -> bool:
    """Whether writing the table again is cheaper than a MERGE of `arrived` rows."""
    size: int = sum(pa.table(table.get_add_actions())["size_bytes"].to_pylist())
    return size < SMALL_TABLE_BYTES * max(1, arrived / _FEW_ROWS)


def _read_metrics(own: OwnCommit) -> tuple[int, int, int]:
    """Read how many rows a MERGE inserted, updated and deleted, from its commit.

    Raises: DeltaError if the commit has no counts.
    """
    names = [f"numTargetRows{what}" for what in _COUNTS]
    if not own.metrics.keys() >= {*names}:
        raise DeltaError(f"version {own.version} has no counts: Delta's metrics are turned off")
    inserted, updated, deleted = (int(own.metrics[name]) for name in names)
    return inserted, updated, deleted


def _merge_guarded(  # noqa: PLR0917 - What is written, where, and what its commit says.
    session: SparkSession,
    lake: Lake,
    before: DeltaTable,
    epoch: Epoch,
    plan: TablePlan,
    outcome: Outcome,
    lossy: Losses,
) -> tuple[int, Written]:
    """MERGE, and rewrite the table if the counts are wrong; return the version and the counts."""
    path = lake.locate(plan.table)
    with carry_bound(session, epoch, plan, lossy):
        _merge(SparkTable.forPath(session, str(path)), outcome, plan)
    own = find_own_commit(path, before, epoch, plan.upper)
    require_durable(path, above=before.version(), through=own.version)
    inserted, updated, deleted = _read_metrics(own)
    written = Written(inserted, updated, deleted, lossy)
    damage = find_damage(arrived=outcome.arrived, inserted=inserted, updated=updated)
    if damage is None:
        return own.version, written
    # Queue the backfill before the rewrite: a crash between the two must not lose it.
    queue_tables(lake, [plan.table], reason=damage, since=plan.upper)
    after = DeltaTable(path)
    written = rewrite_table(session, path, (before, after), epoch, plan, outcome)
    return after.version() + 1, written


def _merge(table: SparkTable, outcome: Outcome, plan: TablePlan) -> None:
    assert plan.schema is not None
    schema, carried = plan.schema, outcome.carried
    ids = id_names(schema)
    names = match_names(schema)
    matches = [f"t.`{name}` = s.{id_name}" for name, id_name in zip(names, ids, strict=True)]
    ranges = _bound_keys(outcome, ids[0])
    condition = F.expr(" and ".join(matches))
    if ranges:
        key = F.col(f"t.`{names[0]}`")
        inside = [key.between(F.lit(low), F.lit(high)) for low, high in ranges]
        anywhere = inside[0]
        for one in inside[1:]:
            anywhere |= one
        condition &= anywhere
    known = set(table.toDF().columns)
    # The table has no values of a new column to carry. Arriving rows have NULL, as older rows do.
    carried = frozenset(i for i in carried if schema.names[i] in known)
    renewed = carry(schema, carried, "s", "t")
    merge = table.alias("t").merge(outcome.rows.alias("s"), condition)
    if not known.issuperset(renewed):
        merge = merge.withSchemaEvolution()
    present, is_older = F.col("s._present"), ~is_newer("t", "s")
    merge = merge.whenMatchedUpdate(present & is_older, _quote(renewed))
    if outcome.departed:
        merge = merge.whenMatchedDelete(~present & is_older)
    merge = merge.whenNotMatchedInsert("s._present", _quote(insert(schema, outcome.carried, "s")))
    if plan.swept:
        merge = merge.whenNotMatchedBySourceDelete(is_swept("t", schema, plan.swept))
    merge.execute()


def _replace(  # noqa: PLR0917 - What is written, where, and what its commit says.
    base: DataFrame | None,
    outcome: Outcome,
    path: Path,
    before: DeltaTable,
    epoch: Epoch,
    plan: TablePlan,
    lossy: Losses,
) -> tuple[int, int]:
    """Write the table whole; return how many rows of the base were updated and deleted."""
    assert plan.schema is not None
    touched = Observation()
    rows = apply_rows(
        base, outcome.rows, plan.schema, outcome.carried, swept=plan.swept, touched=touched
    )
    write_rows(rows, path, before, "overwrite", epoch, plan, lossy)
    return (0, 0) if base is None else (touched.get["updated"], touched.get["deleted"])


def _bound_keys(outcome: Outcome, first_id: str) -> list[tuple[object, object]]:
    """Ranges that hold every first id: narrow for integers, one for texts, none for other types."""
    least, greatest = outcome.least, outcome.greatest
    if isinstance(least, bool) or not isinstance(least, int) or not isinstance(greatest, int):
        return [(least, greatest)] if isinstance(least, str) else []
    if greatest - least < _KEY_RANGES:
        return [(least, greatest)]
    width = (greatest - least) // _KEY_RANGES + 1
    bucket = F.floor((F.col(first_id).cast("decimal(38,0)") - F.lit(least)) / F.lit(width))
    rows = outcome.rows.groupBy(bucket).agg(F.min(first_id), F.max(first_id)).collect()
    return sorted((row[1], row[2]) for row in rows)


def _quote(values: Mapping[str, Expression]) -> dict[str, Expression | str]:
    return {f"`{name}`": value for name, value in values.items()}
