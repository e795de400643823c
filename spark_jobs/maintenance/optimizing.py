"""Lets Delta rewrite files of the tables that only Spark may write.

A MERGE into a table with deletion vectors marks rows as deleted, and leaves them in their files.
Others may have given a table constraints or a change feed. For such tables, Delta's OPTIMIZE does
what `compaction` does for the others, and writes files again of which many rows are deleted.

Source: Delta documentation, Optimizations; the Delta protocol, section Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_core.errors import MergeError, Retry
from cdc_core.vocabulary import TableName
from spark_jobs.delta.direct_parquet import is_plain
from spark_jobs.fold.plan import has_table_schema
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Lake, format_losses, open_table, read_losses
from spark_jobs.maintenance.compaction import MOST_BYTES, SMALL_BYTES, choose_small, list_files
from spark_jobs.session.session import find_jvm
from spark_jobs.target.commits import USER_METADATA

# A file is written again if more of its rows are deleted.
_MOST_DELETED = 0.3
_OPTIMIZE = "spark.databricks.delta.optimize"


def optimize_table(lake: Lake, name: TableName, open_session: Callable[[], SparkSession]) -> bool:
    """Let Delta rewrite a table that only Spark may write, if it needs that; whether it did.

    Only then is a session opened. Raises: MergeError if somebody else keeps the table's lock, or if
    Delta or the storage refuses; what `open_session` raises.
    """
    folder = lake.locate(name)
    if not _is_due(open_table(folder)):
        return False
    session = open_session()
    with lake.lock_table(str(name), jvm=find_jvm(session)):
        table = open_table(folder)
        if table is None or not _is_due(table):
            return False
        newest = table.version()
        # A merge that died may have left the newest commit, and the disk may have refused it.
        require_durable(folder, above=newest - 1, through=newest, left=newest)
        own = session.newSession()
        own.conf.set(USER_METADATA, format_losses(read_losses(table)))
        own.conf.set(f"{_OPTIMIZE}.minFileSize", str(SMALL_BYTES))
        own.conf.set(f"{_OPTIMIZE}.maxFileSize", str(MOST_BYTES))
        own.conf.set(f"{_OPTIMIZE}.maxDeletedRowsRatio", str(_MOST_DELETED))
        try:
            SparkTable.forPath(own, folder.uri).optimize().executeCompaction()
        except PySparkException as error:
            raise MergeError(
                f"{name} was not optimized: {error.getCondition() or type(error).__name__}",
                fix="nothing: the next maintenance tries again",
                retry=Retry.LATER,
            ) from error
        require_durable(folder, above=newest, through=DeltaTable(folder.uri).version())
    return True


def _is_due(table: DeltaTable | None) -> bool:
    """Whether a table has many small files, or a file of which many rows are deleted."""
    if table is None or not has_table_schema(table) or is_plain(table):
        return False
    if table.metadata().partition_columns:
        return False  # Each partition may have a small file, which nothing can be joined with.
    return bool(choose_small(list_files(table))) or _find_most_deleted(table) > _MOST_DELETED


def _find_most_deleted(table: DeltaTable) -> float:
    """The greatest share of deleted rows that a file has."""
    most = 0.0
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for kept in batch.column("selection_vector"):
            rows = len(kept.values)
            most = max(most, 1 - (pc.sum(kept.values).as_py() or 0) / rows if rows else 0.0)
    return most
