"""Reads tables as of one LSN: a table's version at the newest cut, plus the log since then.

Tables that are read at the same LSN agree: each source transaction is wholly in all of them, or in
none. The read folds the log from the table's own merged LSN on, with the same fold as a merge.
In every mode of a table, the result has the present rows.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.errors import LakeError, Retry
from cdc_core.vocabulary import TableName
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.outcome import fold_plan, fold_plan_and_last_rows
from spark_jobs.fold.plan import TablePlan, as_query, choose_types, plan_table, read_schema
from spark_jobs.fold.rebuild import plan_rebuild
from spark_jobs.fold.removals import RemovalPoints
from spark_jobs.fold.reshaping import reshape_rows
from spark_jobs.fold.rows import widen
from spark_jobs.lake.completeness import Incomplete
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Bound, Lake, find_bound
from spark_jobs.lake.leases import Lease
from spark_jobs.lake.ledger import find_cut
from spark_jobs.log.files import LogFiles
from spark_jobs.log.ranges import summarize
from spark_jobs.log.reading import read_log
from spark_jobs.modes.current import CURRENT
from spark_jobs.modes.mode import Mode
from spark_jobs.modes.registry import choose_mode, find_mode
from spark_jobs.modes.table_rows import TableRemoval, apply_rows
from spark_jobs.query.stored import (
    StoredTable,
    VersionGone,
    find_stored,
    make_gone_error,
    open_version,
)
from spark_jobs.schema.evolution import Halt


@dataclass(frozen=True, slots=True)
class TableReading:
    """A table as of the bound `through`. A halted table is as of the bound at which it halted.

    If `incomplete` is not None, rows may be missing: no whole backfill of the table ended by the
    bound that was asked for.
    """

    rows: DataFrame
    through: Bound
    halt: Halt | None
    incomplete: Incomplete | None


def table_at(
    session: SparkSession,
    lake: Lake,
    table: TableName,
    at: Bound,
    *,
    lease_of_newest: Lease | None = None,
    as_stored: bool = False,
) -> TableReading:
    """Read a table with every transaction up to a bound, and no other.

    The result has the present rows; if `as_stored`, all rows and columns that the table's mode has.

    The read begins from the version in the newest cut at or below the bound. With
    `lease_of_newest`, it begins from the newest version that is not above the bound. That version
    also has what other writers have done to the table's rows since the cut. The lease keeps it.
    Raises: LakeError if the lake has no rows of the table at the bound, or if the version in the
    cut is gone.
    """
    name = str(table)
    stored = find_stored(lake, table, at)
    opened, low, incomplete = stored.opened, stored.low, stored.incomplete
    newest = None
    if lease_of_newest is not None and not stored.lacks_changes:
        newest = _find_newest(lake, table, at, stored, lease_of_newest)
        opened, low = newest
    # In the mode `current`, a table is its present rows.
    mode = CURRENT
    if as_stored:
        mode = choose_mode(lake, table) if opened is None else find_mode(opened)
    base = None if opened is None else _read_version(session, lake, table, opened, mode)
    if not stored.needs_fold and low is not None and base is not None and newest is None:
        return TableReading(base, low, stored.halt, incomplete)
    if not stored.needs_fold and opened is None:
        raise make_no_rows_error(name, at, stored.halt)
    files = LogFiles.open(lake)
    assert files is not None
    if files.trimmed is not None and (low is None or low < files.trimmed):
        raise _make_lost_cut_error(at)
    log = read_log(session, files, low, at)
    plot = partial(
        plan_table,
        table=table,
        before=None if opened is None else read_schema(opened),
        relations=lake.read_relations(),
        upper=at,
        choose=choose_types(lake, table),
    )
    plan = plot(as_query(log), summaries=summarize(log.where(F.col("table") == name)))
    if plan.halt is not None:
        read_above = partial(read_log, session, files, upper=at)
        renewed = plan_rebuild(plan, read_above, plot, entries=log, trimmed=files.trimmed)
        if renewed is not None:
            plan = renewed
            base = None if opened is None else _reshape(base, opened, plan, mode)
    through = plan.upper if low is None else max(low, plan.upper)
    if plan.schema is None:
        raise make_no_rows_error(name, at, plan.halt)
    if plan.is_empty:
        assert base is not None
        return TableReading(base, through, plan.halt, incomplete)
    return TableReading(_apply_plan(plan, base, mode), through, plan.halt, incomplete)


def _reshape(
    base: DataFrame | None, opened: DeltaTable, plan: TablePlan, mode: Mode
) -> DataFrame | None:
    """The rows that a mode keeps of a table that is built again; None if it keeps none."""
    if base is None or mode.kept is None or plan.schema is None:
        return None
    return reshape_rows(base, read_schema(opened), plan.schema)


def _apply_plan(plan: TablePlan, base: DataFrame | None, mode: Mode) -> DataFrame:
    """The rows of a table in a mode after a plan; `base` are those before it, None if none."""
    assert plan.schema is not None
    target = None if base is None else widen(base, plan.schema)
    if mode.kept is None:
        target = None if plan.truncated_at is not None else target
        outcome, removals = fold_plan(plan, target), RemovalPoints()
    else:
        removals = RemovalPoints.of(plan)
        present = None if target is None else mode.select_present(target)
        had = None if plan.before is None else present
        outcome = fold_plan_and_last_rows(plan, removals, had)
    return apply_rows(
        target,
        outcome.rows,
        plan.schema,
        outcome.carried,
        mode=mode,
        removal=TableRemoval.of(plan, removals),
    ).select(*(f"`{field.name}`" for field in mode.list_fields(plan.schema)))


def make_no_rows_error(table: str, at: Bound, halt: Halt | None) -> LakeError:
    """The error for a table of which the lake has nothing at a bound."""
    reason = f": {halt.reason}" if halt else ""
    return LakeError(
        f"the lake holds no rows of {table} at {at.lsn}{reason}",
        fix=halt.fix if halt else "check the name and the publication",
        retry=Retry.AFTER_FIX,
    )


def _make_lost_cut_error(at: Bound) -> LakeError:
    """The error for a bound whose cut was dropped, after the log was trimmed beyond it."""
    return LakeError(
        f"the lake can no longer be read at {at.lsn}: maintenance has dropped the cut below it",
        fix="open the lake again at latest, or at a newer LSN or time",
        retry=Retry.AFTER_FIX,
    )


def list_tables(lake: Lake) -> list[TableName]:
    """List the tables that the log has announced, and those merged from a log that is gone."""
    cut = find_cut(lake)
    merged = set(cut.list_tables()) if cut else set()
    return sorted(merged | {relation.table for relation in lake.read_relations().values()})


def keep_newest(lake: Lake, table: TableName, at: Bound, lease: Lease) -> None:
    """Let a lease keep the version from which `table_at` begins with this lease, if there is one.

    `table_at` says what is wrong with a table that cannot be opened.
    """
    with suppress(LakeError):
        stored = find_stored(lake, table, at)
        if not stored.lacks_changes:
            _find_newest(lake, table, at, stored, lease)


def _find_newest(
    lake: Lake, table: TableName, at: Bound, stored: StoredTable, lease: Lease
) -> tuple[DeltaTable | None, Bound | None]:
    """Find the newest version that holds no change above a bound, and its merged bound.

    The lease keeps the version. `stored` is the table at the newest cut at or below the bound.
    """
    opened, low = _choose_newest(lake, table, at, stored.opened, stored.low)
    if opened is not None:
        lease.keep_version(table, opened.version())
    return opened, low


def _choose_newest(
    lake: Lake, table: TableName, at: Bound, opened: DeltaTable | None, low: Bound | None
) -> tuple[DeltaTable | None, Bound | None]:
    newest = open_current(lake.locate(table))
    if newest is None:
        return opened, low
    epochs = lake.read_epochs()
    known = None if opened is None else find_bound(opened, epochs)
    for number in range(newest.version(), -1 if opened is None else opened.version(), -1):
        try:
            candidate = open_version(lake, table, number)
        except VersionGone:
            continue  # Maintenance has removed this version, which no cut names.
        through = find_bound(candidate, epochs)
        if through is not None and through <= at:
            # Commits of other writers do not move the bound beyond that of the cut's version.
            return candidate, low if through == known else through
    return opened, low


def _read_version(
    session: SparkSession, lake: Lake, table: TableName, opened: DeltaTable, mode: Mode
) -> DataFrame:
    """The rows of an open table, as a mode has them."""
    try:
        stored = read_rows(session, lake.locate(table), opened)
    except AnalysisException as error:
        # The Delta log still has the version, but some of its data files are gone.
        raise make_gone_error(table, opened.version()) from error
    return mode.adopt(stored, find_mode(opened))
