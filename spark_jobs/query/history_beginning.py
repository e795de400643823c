"""Finds what a history begins with that has no version of its own yet.

It begins with the log. If the log does not reach back to the first change, it begins with the rows
that its table had at the oldest kept cut. Nobody knows since when these rows were as they are.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.errors import LakeError
from cdc_core.vocabulary import TableName
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.plan import read_schema
from spark_jobs.history.reshaping import HistoryShape
from spark_jobs.history.versions import BASE, begin_at
from spark_jobs.lake.cut_plan import Place
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Cut, find_cut, find_first_bound, find_oldest_bound
from spark_jobs.log.files import LogFiles
from spark_jobs.modes.registry import find_mode
from spark_jobs.query.stored import open_version, require_named
from spark_jobs.target.older_targets import find_log_begin


@dataclass(frozen=True, slots=True)
class HistoryBeginning:
    """What a history begins with.

    The log counts above `low`; None means the whole log. `versions` are open versions, and `shape`
    are their columns; both are None if the history has no version there.
    """

    low: Bound | None
    versions: DataFrame | None = None
    shape: HistoryShape | None = None


def find_beginning(
    session: SparkSession, lake: Lake, log: LogFiles, table: TableName
) -> HistoryBeginning:
    """Find what a history of a table begins with.

    Without a version that can be read, it begins where the log does.
    """
    begins, first = find_log_begin(log), find_first_bound(lake)
    is_whole = first is None or (begins is not None and begins <= first)
    if log.trimmed is None and is_whole:
        return HistoryBeginning(None)
    oldest = find_oldest_bound(lake)
    # Somebody may have removed the version of the oldest cut, or put another table in its place.
    for cut in (None if oldest is None else find_cut(lake, oldest), find_cut(lake)):
        if cut is None or (log.trimmed is not None and _place(cut, table).bound < log.trimmed):
            continue
        if _place(cut, table).version is None:
            return HistoryBeginning(_place(cut, table).bound)
        with suppress(LakeError):
            return _begin_with_rows(session, lake, table, cut)
    return HistoryBeginning(log.trimmed)


def _place(cut: Cut, table: TableName) -> Place:
    return cut.find_place(str(table))


def _begin_with_rows(
    session: SparkSession, lake: Lake, table: TableName, cut: Cut
) -> HistoryBeginning:
    place = _place(cut, table)
    assert place.version is not None
    delta = open_version(lake, table, place.version)
    require_named(lake, table, place, delta)
    stored = read_rows(session, lake.locate(table), delta)
    rows, schema = find_mode(delta).select_present(stored), read_schema(delta)
    moment = F.struct(
        F.lit(place.bound.epoch).alias("epoch"),
        F.lit(int(place.bound.lsn)).alias("end_lsn"),
        F.lit(cut.committed_at).alias("log_time"),
        F.lit(BASE).alias("op"),
    )
    return HistoryBeginning(place.bound, begin_at(rows, schema, moment), HistoryShape(schema))
