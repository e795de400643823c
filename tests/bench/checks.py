"""Whether what a drain left is right: the changes in the log, the rows in the table."""

from __future__ import annotations

from pyspark.sql import SparkSession

from cdc_core.vocabulary import TableName
from spark_jobs.lake import Lake
from tests.bench.backlog import Backlog

_LOG = """
select op, count(*), count(distinct epoch, commit_lsn, seq),
       sum(cast(coalesce(`values`[0], old_values[0]) as bigint))
from delta.`{}` where `table` is not null and commit_lsn >= {} group by op
"""
# Every text is the one that the source's checksum has.
_TABLE = """
select count(*), sum(cast(conv(substring(md5(concat_ws('|', id, a, b, c, d, cast(e as int),
  unix_micros(f), g, floor(h * 1000), i)), 1, 8), 16, 10) as bigint))
from delta.`{}`
"""


def require_log(session: SparkSession, lake: Lake, backlog: Backlog) -> int:
    """Fail unless the log holds each change of the backlog once; give how many."""
    rows = session.sql(_LOG.format(lake.changes, backlog.first_lsn)).collect()
    found = {row[0]: (row[1], row[3]) for row in rows}
    expected = backlog.shape.count()
    assert found == expected, f"the log holds {found}, expected {expected}"
    assert all(row[1] == row[2] for row in rows), "a position is in the log twice"
    return sum(count for count, _ in found.values())


def require_table(session: SparkSession, lake: Lake, backlog: Backlog) -> int:
    """Fail unless the table holds the source's rows; give how many."""
    path = lake.locate(TableName("public", "bench"))
    found = tuple(session.sql(_TABLE.format(path)).collect()[0])
    expected = (backlog.rows, backlog.checksum)
    assert found == expected, f"the table holds {found}, the source {expected}"
    return backlog.rows
