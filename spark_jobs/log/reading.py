"""Reads the entries of a log range with Spark, and compares their positions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_core.vocabulary import UNIX_START, Lsn, Operation, Position
from spark_jobs.delta.direct_parquet import allow_old_versions, read_files
from spark_jobs.lake.lake import Bound
from spark_jobs.log.files import LogFiles

ROW_OPERATIONS = frozenset({Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.READ})
POSITION = ("epoch", "commit_lsn", "seq")
# The type of a log point as a Spark value.
POINT_TYPE = "struct<epoch:int,commit_lsn:bigint,seq:bigint,committed_at:timestamp>"
# With more files, Delta reads the log faster than Spark reads the files one by one.
_MAX_FILES = 1_000


def read_log(
    session: SparkSession, files: LogFiles, lower: Bound | None, upper: Bound
) -> DataFrame:
    """Read the entries of `(lower, upper]`. The same position may occur twice.

    If `lower` is None, the range begins with the log.
    """
    log = _read_files(session, files, lower, upper)
    epoch, lsn = F.col("epoch"), F.col("end_lsn")
    below = (epoch < upper.epoch) | ((epoch == upper.epoch) & (lsn <= int(upper.lsn)))
    if lower is None:
        return log.where(below)
    if lower.epoch == upper.epoch:
        # This form of the condition lets Spark skip files by their statistics.
        inside = (lsn > int(lower.lsn)) & (lsn <= int(upper.lsn))
        return log.where((epoch == upper.epoch) & inside)
    above = (epoch > lower.epoch) | ((epoch == lower.epoch) & (lsn > int(lower.lsn)))
    return log.where(above & below)


def _read_files(
    session: SparkSession, files: LogFiles, lower: Bound | None, upper: Bound
) -> DataFrame:
    """Read the files of the log that may hold entries of a range, or the whole log."""
    reaching = files.list_reaching(lower, upper)
    if len(reaching) <= _MAX_FILES and files.can_read(reaching):
        return read_files(session, files.folder, files.log, [file.name for file in reaching])
    allow_old_versions(session)
    # A newer version may lack entries that this one has.
    version = str(files.log.version())
    return session.read.format("delta").option("versionAsOf", version).load(files.folder.uri)


def find_first(log: DataFrame, table: str, versions: Iterable[int], after: Position) -> Position:
    """Find a table's first position above `after` that has one of some relation versions."""
    row = (
        log.where(F.col("table") == table)
        .where(F.col("relation_version").isin(*versions) & is_after(after))
        .agg(F.min(F.struct(*POSITION)))
        .collect()[0][0]
    )
    return Position(row[0], Lsn(row[1]), row[2])


@dataclass(frozen=True, slots=True, order=True)
class LogPoint:
    """A place in the log, and when the source committed its transaction."""

    position: Position
    committed_at: datetime


def find_points(
    entries: DataFrame, operation: Operation, *columns: str
) -> list[tuple[LogPoint, Row]]:
    """Find the entries of an operation: their places, and rows that have some of their columns."""
    # As a number: Spark would return a time in this process's zone, and not name the zone.
    time = F.unix_micros("committed_at").alias("committed_us")
    found = entries.where(F.col("op") == operation.value).select(*POSITION, time, *columns)
    return [
        (
            LogPoint(
                Position(row["epoch"], Lsn(row["commit_lsn"]), row["seq"]),
                UNIX_START + timedelta(microseconds=row["committed_us"]),
            ),
            row,
        )
        for row in found.collect()
    ]


def write_points(points: Iterable[LogPoint]) -> Expression:
    """Return points as one Spark array. Its plan stays small, however many points there are."""
    microsecond = timedelta(microseconds=1)
    written = [
        (
            *(point.position.epoch, int(point.position.commit_lsn), point.position.seq),
            (point.committed_at - UNIX_START) // microsecond,
        )
        for point in points
    ]
    listed = F.from_json(F.lit(json.dumps(written)), "array<array<bigint>>")
    return F.transform(
        listed,
        lambda point: F.struct(
            *(point[i].alias(name) for i, name in enumerate(POSITION)),
            F.timestamp_micros(point[len(POSITION)]).alias("committed_at"),
        ).cast(POINT_TYPE),
    )


def is_after(position: Position) -> Expression:
    """Whether an entry is above a position."""
    return F.struct(*(F.col(name) for name in POSITION)) > write_position(position)


def write_position(position: Position) -> Expression:
    """Return a position as a Spark value to compare with."""
    return F.struct(
        F.lit(position.epoch).alias("epoch"),
        F.lit(int(position.commit_lsn)).cast("long").alias("commit_lsn"),
        F.lit(position.seq).cast("long").alias("seq"),
    )
