"""Reads a history as of one LSN: its versions up to there, and the log above them.

Each version has the end LSNs between which it is valid. So a reader slices the newest version of
the Delta table at any LSN, and needs no cut. Columns, and values that were found later, are those
of the newest version of the table.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_core.table_states import TableState
from cdc_core.targets import Target
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.plan import choose_types, has_table_schema
from spark_jobs.history.apply import apply_plan
from spark_jobs.history.plan import HistoryRange, describe_gap, plan_versions
from spark_jobs.history.reshaping import HistoryShape
from spark_jobs.history.versions import slice_at
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Bound, Lake, find_bound
from spark_jobs.lake.ledger import find_cut, read_states
from spark_jobs.log.files import LogFiles
from spark_jobs.log.ranges import summarize
from spark_jobs.log.reading import read_log
from spark_jobs.query.as_of import TableReading, make_no_rows_error
from spark_jobs.query.history_beginning import HistoryBeginning, find_beginning
from spark_jobs.schema.evolution import Halt


def versions_at(session: SparkSession, lake: Lake, target: Target, at: Bound) -> TableReading:
    """Read a history with every transaction up to a bound, and no other.

    Raises: LakeError if the lake has no version of the table's rows.
    """
    files, table = LogFiles.open(lake), str(target.table)
    assert files is not None
    base = _find_stored(session, lake, target, files)
    low, versions = base.low, base.versions
    incomplete = read_completeness(lake).find_incomplete(table, at)
    if versions is not None and low is not None and at <= low:
        through, halt = _find_past_halt(lake, target, at)
        return TableReading(slice_at(versions, through), through, halt, incomplete)
    log = read_log(session, files, low, at)
    lost = None
    if low is not None and files.trimmed is not None and low < files.trimmed:
        lost = (low, _find_halt(lake, target, low))
    plan = plan_versions(
        HistoryRange(
            target.table,
            lambda: log,
            partial(read_log, session, files, upper=at),
            summarize(log.where(F.col("table") == table)),
            lake.read_relations(),
            at,
            choose_types(lake, target.table),
            files.trimmed,
        ),
        None if base.shape is None else base.shape.schema,
        lost=lost,
    )
    found, _ = apply_plan(versions, base.shape, plan)
    if found is None:
        raise make_no_rows_error(str(target), at, plan.halt)
    through = plan.last.upper if low is None else max(low, plan.last.upper)
    return TableReading(slice_at(found, through), through, plan.halt, incomplete)


def _find_stored(
    session: SparkSession, lake: Lake, target: Target, files: LogFiles
) -> HistoryBeginning:
    """The versions that a history has, or those that its first merge would begin with."""
    folder = lake.locate_target(target)
    delta = open_current(folder)
    bound = None if delta is None else find_bound(delta, lake.read_epochs())
    # A merge that died may have made the table, and not filled it.
    if delta is None or bound is None or not has_table_schema(delta):
        return find_beginning(session, lake, files, target.table)
    shape = HistoryShape.of(delta)
    low = _find_low(lake, target, bound)
    return HistoryBeginning(low, read_rows(session, folder, delta), shape)


def _find_low(lake: Lake, target: Target, bound: Bound | None) -> Bound | None:
    """How far a history is merged: through the newest cut, if it had no change since `bound`."""
    cut = find_cut(lake)
    place = None if cut is None else cut.places.get(str(target))
    if bound is None or place is None or place.held != bound:
        return bound
    return max(bound, place.bound)


def _find_past_halt(lake: Lake, target: Target, at: Bound) -> tuple[Bound, Halt | None]:
    """The bound that a history had reached at a bound, and its halt if it was halted then."""
    cut, name = find_cut(lake, at), str(target)
    if cut is None or name not in cut.halted:
        return at, None
    return cut.find_place(name).bound, Halt("", "")


def _find_halt(lake: Lake, target: Target, low: Bound) -> Halt:
    """The halt of a history of which the log no longer has all changes."""
    state = read_states(lake).get(str(target))
    if state is None or state.state is not TableState.HALTED:
        return describe_gap(target.table, low)
    return Halt(state.reason or "", state.fix or "", state.curable)
