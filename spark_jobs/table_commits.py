"""What a commit to a table says: its rows, how far the table has come, and what it has lost.

All of it in one commit, so that none can be there without the others. By Spark; where the table's
files are plain and nothing else is to be written, by delta-rs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable as LogReader
from pyspark.sql import DataFrame, SparkSession

from cdc_core.vocabulary import TableName
from spark_jobs.lake import Epoch, Losses, format_losses
from spark_jobs.plain_files import TABLE_PROPERTY, commit_plain, is_plain
from spark_jobs.stretch import Stretch
from spark_jobs.table_before import Base

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def write_rows(  # noqa: PLR0917 - What is written, where, and what its commit says.
    rows: DataFrame, path: Path, mode: str, epoch: Epoch, stretch: Stretch, lossy: Losses | None
) -> None:
    """Write rows in one commit that says how far the table has come."""
    writer = rows.write.format("delta").mode(mode)
    if mode == "overwrite":
        writer = writer.option("overwriteSchema", "true")
    (
        writer.option("txnAppId", epoch.app)
        .option("txnVersion", str(int(stretch.upper.lsn)))
        .option("userMetadata", format_losses(lossy))
        .save(str(path))
    )


@contextmanager
def carry_bound(
    session: SparkSession, epoch: Epoch, stretch: Stretch, lossy: Losses
) -> Iterator[None]:
    """Make the commits of a block carry how far the table has come, and what it has lost."""
    carried = {
        _TXN_APP: epoch.app,
        _TXN_VERSION: str(int(stretch.upper.lsn)),
        _USER_METADATA: format_losses(lossy),
    }
    for name, value in carried.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in carried:
            session.conf.unset(name)


def move_bound(  # noqa: PLR0917 - What is written, where, and what its commit says.
    base: Base, path: Path, before: LogReader, epoch: Epoch, stretch: Stretch, lossy: Losses
) -> None:
    """Commit how far the table has come, and no row."""
    if is_plain(before):
        reached = (epoch, stretch.upper)
        commit_plain(path, before, [], "append", reached=reached, lossy=lossy)
    else:
        write_rows(base.rows.limit(0), path, "append", epoch, stretch, lossy)


def tell_losses(session: SparkSession, path: Path, table: TableName, lossy: Losses) -> None:
    """Have a commit that changes nothing tell the counts."""
    if is_plain(written := LogReader(path)):
        commit_plain(path, written, [], "append", reached=None, lossy=lossy)
        return
    quoted = str(table).replace("\\", "\\\\").replace("'", "\\'")
    place = f"delta.`{str(path).replace('`', '``')}`"
    session.conf.set(_USER_METADATA, format_losses(lossy))
    try:
        session.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('{TABLE_PROPERTY}' = '{quoted}')")
    finally:
        session.conf.unset(_USER_METADATA)
