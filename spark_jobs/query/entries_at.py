"""Reads a target of entries as of one LSN: its rows up to there, and the log above them.

Each row has the end LSN of its transaction. So a reader filters the newest version at any LSN, and
needs no cut. Names, types and hidden values are those of the newest version.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.targets import Target
from spark_jobs.append.plan import plan_entries
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.plan import as_query, choose_types, has_table_schema, read_schema
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Bound, Lake, find_bound
from spark_jobs.log.files import LogFiles
from spark_jobs.log.ranges import summarize
from spark_jobs.log.reading import read_log
from spark_jobs.query.as_of import TableReading, make_no_rows_error


def entries_at(session: SparkSession, lake: Lake, target: Target, at: Bound) -> TableReading:
    """Read a target of entries with every transaction up to a bound, and no other.

    Raises: LakeError if the lake has no entry of the table.
    """
    delta = open_current(lake.locate_target(target))
    if delta is not None and not has_table_schema(delta):
        delta = None  # Another writer has replaced it. The next merge builds it from the log.
    low = None if delta is None else find_bound(delta, lake.read_epochs())
    stored = None
    if delta is not None:
        stored = _take_until(read_rows(session, lake.locate_target(target), delta), at)
    if stored is not None and low is not None and at <= low:
        return TableReading(stored, at, None, None)
    files = LogFiles.open(lake)
    assert files is not None
    log = read_log(session, files, low, at)
    table = str(target.table)
    plan = plan_entries(
        as_query(log),
        target,
        summarize(log.where(F.col("table") == table)),
        before=None if delta is None else read_schema(delta),
        relations=lake.read_relations(),
        upper=at,
        choose=choose_types(lake, target.table),
    )
    reading = partial(TableReading, through=plan.upper, halt=plan.halt, incomplete=None)
    if plan.is_empty:
        if stored is None:
            raise make_no_rows_error(str(target), at, plan.halt)
        return reading(stored)
    rows = plan.make_rows()
    if stored is not None:
        stored = plan.reshape(stored)
        rows = stored.unionByName(rows)
    return reading(rows)


def _take_until(rows: DataFrame, at: Bound) -> DataFrame:
    epoch, end = F.col("_epoch"), F.col("_end_lsn")
    return rows.where((epoch < at.epoch) | ((epoch == at.epoch) & (end <= int(at.lsn))))
