"""Reads tables as of one LSN: a table's version at the newest cut, plus the log since then.

Tables that are read at the same LSN agree: each source transaction is wholly in all of them, or in
none. The read folds the log from the table's own merged LSN on, with the same fold as a merge.
In every mode of a table, the result has the present rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.errors import LakeError, Retry
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.outcome import fold_plan
from spark_jobs.fold.plan import as_query, choose_types, plan_table, read_schema
from spark_jobs.fold.rebuild import plan_rebuild
from spark_jobs.fold.rows import table_fields, widen
from spark_jobs.lake.completeness import Incomplete, read_completeness
from spark_jobs.lake.cut_plan import Place, needs_fold
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Bound, Lake, find_bound, require_epochs
from spark_jobs.lake.ledger import Cut, find_cut, read_states
from spark_jobs.log.files import LogFiles
from spark_jobs.log.ranges import summarize
from spark_jobs.log.reading import read_log
from spark_jobs.modes.current import CURRENT
from spark_jobs.modes.registry import choose_mode
from spark_jobs.modes.table_rows import Removal, apply_rows
from spark_jobs.schema.evolution import Halt
from spark_jobs.target.older_tables import know_place


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


def find_bound_at(lake: Lake, at: str) -> Bound:
    """Find the bound of `latest` (the newest cut), `live` (the staged LSN) or an LSN.

    Raises: LakeError if the lake cannot be read at the LSN; it names the ranges that can be read.
    """
    epochs = require_epochs(lake)
    if at == "latest":
        cut = find_cut(lake)
        if cut is None:
            raise LakeError(
                "no cut was written yet", fix="run `walgate merge` first", retry=Retry.AFTER_FIX
            )
        return cut.bound
    staged = lake.read_staged(epochs)
    if staged is None:
        raise LakeError(
            "nothing was staged yet", fix="run `walgate replicate` first", retry=Retry.AFTER_FIX
        )
    if at == "live":
        return staged
    try:
        lsn = Lsn.parse(at)
    except ValueError as error:
        raise LakeError(
            f"{at!r} is neither latest, live nor an LSN",
            fix="give latest, live, or an LSN such as 16/B374D848",
            retry=Retry.AFTER_FIX,
        ) from error
    # A newer epoch may have smaller LSNs. The newest epoch whose range has the LSN counts.
    held: list[str] = []
    for epoch in reversed(epochs):
        end = staged.lsn if epoch.number == staged.epoch else _find_end(lake, epoch.app)
        if end is not None and epoch.first_lsn <= lsn <= end:
            return Bound(epoch.number, lsn)
        if end is not None:
            held.append(f"{epoch.first_lsn} to {end}")
    # The log has nothing between two epochs.
    covered = ", or from ".join(reversed(held))
    raise LakeError(
        f"the lake cannot be read at {lsn}: expected an LSN from {covered}",
        fix="give an LSN that the log covers",
        retry=Retry.AFTER_FIX,
    )


def table_at(
    session: SparkSession, lake: Lake, table: TableName, at: Bound, *, is_newest: bool = False
) -> TableReading:
    """Read a table with every transaction up to a bound, and no other.

    The read begins from the version in the newest cut at or below the bound. If `is_newest`, it
    begins from the newest version that is not above the bound. That version also has what other
    writers have done to the table's rows since the cut.
    Raises: LakeError if the lake has no rows of the table at the bound, or if the version in the
    cut is gone.
    """
    cut = find_cut(lake, at)
    name = str(table)
    incomplete = read_completeness(lake).find_incomplete(name, at)
    version = None if cut is None else cut.versions.get(name)
    low = None if cut is None else cut.merged.get(name, cut.bound)
    if cut is not None and version is not None:
        _require_named(lake, table, cut.find_place(name))
    if is_newest:
        version, low = _find_newest(lake, table, at, version, low)
    base = None if version is None else _read_version(session, lake, table, version)
    if cut is not None and low is not None and base is not None and not is_newest:
        halt = _find_halt(lake, cut, name) if at == cut.bound else None
        if not needs_fold(low, at, is_halted=halt is not None):
            return TableReading(base, low, halt, incomplete)
    files = LogFiles.open(lake)
    assert files is not None
    log = read_log(session, files, low, at)
    plot = partial(
        plan_table,
        table=table,
        before=None if version is None else read_schema(_open_version(lake, table, version)),
        relations=lake.read_relations(),
        upper=at,
        choose=choose_types(lake, table),
    )
    plan = plot(as_query(log), summaries=summarize(log.where(F.col("table") == name)))
    if plan.halt is not None:
        read_above = partial(read_log, session, files, upper=at)
        renewed = plan_rebuild(plan, read_above, plot, entries=log)
        if renewed is not None:
            plan, base = renewed, None
    through = plan.upper if low is None else max(low, plan.upper)
    if plan.schema is None:
        reason = f": {plan.halt.reason}" if plan.halt else ""
        raise LakeError(
            f"the lake holds no rows of {name} at {at.lsn}{reason}",
            fix=plan.halt.fix if plan.halt else "check the name and the publication",
            retry=Retry.AFTER_FIX,
        )
    if plan.is_empty:
        assert base is not None
        return TableReading(base, through, plan.halt, incomplete)
    target = None
    if plan.truncated_at is None and base is not None:
        target = widen(base, plan.schema)
    outcome = fold_plan(plan, target)
    rows = apply_rows(
        target,
        outcome.rows,
        plan.schema,
        outcome.carried,
        # `target` has the present rows, as in the mode `current`.
        mode=CURRENT,
        removal=Removal(plan.swept),
    )
    names = [f"`{field.name}`" for field in table_fields(plan.schema)]
    return TableReading(rows.select(*names), through, plan.halt, incomplete)


def list_tables(lake: Lake) -> list[TableName]:
    """List the tables that the log has announced, and those merged from a log that is gone."""
    cut = find_cut(lake)
    merged = {TableName.parse(table) for table in cut.versions} if cut else set()
    return sorted(merged | {relation.table for relation in lake.read_relations().values()})


def _find_end(lake: Lake, app: str) -> Lsn | None:
    lsn = DeltaTable(lake.changes.uri).transaction_version(app)
    return None if lsn is None else Lsn(lsn)


def _find_newest(
    lake: Lake, table: TableName, at: Bound, version: int | None, low: Bound | None
) -> tuple[int | None, Bound | None]:
    """Find the newest version that holds no change above a bound, and its merged bound.

    `version` is the version in the newest cut at or below the bound; it is merged through `low`.
    """
    newest = open_current(lake.locate(table))
    if newest is None:
        return version, low
    epochs = lake.read_epochs()
    known = None if version is None else find_bound(_open_version(lake, table, version), epochs)
    for number in range(newest.version(), -1 if version is None else version, -1):
        through = find_bound(_open_version(lake, table, number), epochs)
        if through is not None and through <= at:
            # Commits of other writers do not move the bound beyond that of the cut's version.
            return number, low if through == known else through
    return version, low


def _read_version(session: SparkSession, lake: Lake, table: TableName, version: int) -> DataFrame:
    """The present rows of a table at a version."""
    opened = _open_version(lake, table, version)
    try:
        stored = read_rows(session, lake.locate(table), opened)
    except AnalysisException as error:
        # The Delta log still has the version, but some of its data files are gone.
        raise _miss_version(table, version) from error
    return choose_mode(lake, table).select_present(stored)


def _open_version(lake: Lake, table: TableName, version: int) -> DeltaTable:
    try:
        return DeltaTable(lake.locate(table).uri, version=version)
    except Exception as error:
        # If the Delta log cannot be opened at any version, this raises the error with that remedy.
        open_current(lake.locate(table))
        raise _miss_version(table, version) from error


def _require_named(lake: Lake, table: TableName, place: Place) -> None:
    """Check that the version that a cut names is still the same commit. Raises: LakeError."""
    assert place.version is not None
    epochs = lake.read_epochs()
    held = know_place(place, epochs).held
    if held is not None and find_bound(_open_version(lake, table, place.version), epochs) != held:
        raise _miss_version(table, place.version)


def _miss_version(table: TableName, version: int) -> LakeError:
    return LakeError(
        f"version {version} of {table}, which a cut names, is gone",
        fix="run `walgate merge`: it builds a deleted or restored table again; or"
        " give a newer LSN, and do not let VACUUM remove versions that you read",
        retry=Retry.AFTER_FIX,
    )


def _find_halt(lake: Lake, cut: Cut, table: str) -> Halt | None:
    if table not in cut.halted:
        return None
    state = read_states(lake).get(table)
    if state is None:
        return Halt("", "")
    return Halt(state.reason or "", state.fix or "", state.curable)
