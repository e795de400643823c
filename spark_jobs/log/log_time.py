"""Finds the last transaction of the log up to a time, without Spark.

A log time is never earlier than the one before it. So a read at a time selects the same
transactions in all tables, and the same ones again later.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_layout import LOG_TIME_APP
from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.vocabulary import UNIX_START, Lsn, format_time
from spark_jobs.delta.direct_parquet import has_exact_files
from spark_jobs.lake.lake import Bound
from spark_jobs.log.entries import naming
from spark_jobs.log.files import LogFile, LogFiles

_COLUMNS = ["epoch", "end_lsn", "log_time"]


def find_bound_at_time(log: LogFiles, time: datetime) -> Bound | None:
    """Find the end of the last transaction whose log time is at or before `time`.

    None if the log begins later. Raises: LakeError if `time` is not before the newest log time (a
    later transaction may have the newest log time, too), or if the log cannot be searched.
    """
    newest = _read_newest(log)
    if time >= newest:
        raise LakeError(
            f"the lake cannot be read at {format_time(time)} yet: the log is complete only before"
            f" {format_time(newest)}",
            fix="give an earlier time, or live; or wait until capture has staged a later"
            " transaction or mark",
            retry=Retry.LATER,
        )
    if not has_exact_files(log.log):
        raise LakeError(
            "the log cannot be searched for a time: another program has deleted entries, or has"
            " changed the features of its Delta table",
            fix="give an LSN; let no other program write to the log",
            retry=Retry.AFTER_FIX,
        )
    found: Bound | None = None
    for file in reversed(log.files):
        is_later = file.min_log_time is not None and file.min_log_time > time
        # Files overlap if another program has compacted them.
        is_earlier = found is not None and file.end is not None and file.end <= found
        if not is_later and not is_earlier:
            last = _find_last(log, file, time)
            found = max((bound for bound in (found, last) if bound is not None), default=None)
    return found


def make_begins_later_error(log: LogFiles, time: datetime) -> LakeError:
    """The error for a time before everything that the log has."""
    newest = _read_newest(log)
    least = min((file.min_log_time for file in log.files if file.min_log_time), default=newest)
    # Statistics have milliseconds, rounded down.
    first = min(least + timedelta(milliseconds=1), newest)
    return LakeError(
        f"the lake cannot be read at {format_time(time)}: the log begins later",
        fix=f"give a time from {format_time(first)} on and before {format_time(newest)}, or latest",
        retry=Retry.AFTER_FIX,
    )


def _read_newest(log: LogFiles) -> datetime:
    return UNIX_START + timedelta(microseconds=log.log.transaction_version(LOG_TIME_APP) or 0)


def _find_last(log: LogFiles, file: LogFile, time: datetime) -> Bound | None:
    """The end of a file's last transaction at or before `time`; None if it has none."""
    path = log.folder / file.name
    limit = pa.scalar(time, pa.timestamp("us", tz="UTC"))
    found: Bound | None = None
    with naming(path), open_input(path) as source, pq.ParquetFile(source) as parquet:
        for batch in parquet.iter_batches(columns=_COLUMNS, use_threads=False):
            rows = batch.filter(pc.less_equal(batch["log_time"], limit))
            for epoch in pc.unique(rows["epoch"]).to_pylist():
                own = rows.filter(pc.equal(rows["epoch"], epoch))
                last = Bound(epoch, Lsn(pc.max(own["end_lsn"]).as_py()))
                found = last if found is None else max(found, last)
    return found
