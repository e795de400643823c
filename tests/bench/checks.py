"""Whether what a drain left is right: the changes in the log, the rows in the table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake, open_table
from tests.bench.backlog import Backlog

# Every text is the one that the source's checksum has.
_TABLE = """
select count(*), sum(cast(conv(substring(md5(concat_ws('|', id, a, b, c, d, cast(e as int),
  unix_micros(f), g, floor(h * 1000), i)), 1, 8), 16, 10) as bigint))
from delta.`{}`
"""


def require_log(lake: Lake, backlog: Backlog) -> int:
    """Fail unless the log holds each change of the backlog once; give how many."""
    log = open_table(lake.changes)
    assert log is not None
    changes = log.to_pyarrow_dataset().to_table(
        columns=["epoch", "commit_lsn", "seq", "op", "values", "old_values"],
        filter=(ds.field("commit_lsn") >= backlog.first_lsn) & ds.field("table").is_valid(),
    )
    positions = changes.group_by(["epoch", "commit_lsn", "seq"]).aggregate([])
    assert positions.num_rows == changes.num_rows, "a position is in the log twice"
    first_texts = [pc.list_element(changes[name], 0) for name in ("values", "old_values")]
    keys = pc.coalesce(*first_texts).cast(pa.int64())
    found = pa.table({"op": changes["op"], "key": keys}).group_by("op")
    counts = found.aggregate([("key", "count"), ("key", "sum")]).to_pylist()
    expected = backlog.shape.count()
    held = {row["op"]: (row["key_count"], row["key_sum"]) for row in counts}
    assert held == expected, f"the log holds {held}, expected {expected}"
    return int(changes.num_rows)


def require_table(session: SparkSession, lake: Lake, rows: int, checksum: int) -> int:
    """Fail unless the table holds the source's rows; give how many."""
    path = lake.locate(TableName("public", "bench"))
    found = tuple(session.sql(_TABLE.format(path)).collect()[0])
    expected = (rows, checksum)
    assert found == expected, f"the table holds {found}, the source {expected}"
    return rows
