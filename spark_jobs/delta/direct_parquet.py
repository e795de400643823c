"""Reads and writes a Delta table's files directly, as Parquet; delta-rs commits them.

Through Delta, Spark plans some ten jobs over the table's log for every commit, and two for every
read: 2 s of CPU for a table, however small. A table is eligible if Delta has nothing else to do for
it: no deletion vectors, mapped columns, constraints or change feed.

Source: the Delta protocol, sections Add File and Remove File, Transaction Identifiers.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_jobs.delta.attempts import attempting
from spark_jobs.delta.file_bounds import read_statistics
from spark_jobs.lake.durability import require_durable, require_forced
from spark_jobs.lake.lake import Bound, Epoch, Losses, format_losses

TABLE_PROPERTY = "walgate.table"

_READER_FEATURES = frozenset({"deletionVectors", "timestampNtz"})
_WRITER_FEATURES = _READER_FEATURES | {"appendOnly", "invariants"}
# If the protocol lists no features, Walgate knows all features up to this version.
_PLAIN_VERSION = 2
_PROPERTIES = frozenset({"delta.enableDeletionVectors", TABLE_PROPERTY})
# Limits of a direct read, which reads every file of a table. Delta would skip some.
_MOST_BYTES = 64 << 20
_MOST_FILES = 32
# Spark takes these in a path as a pattern. Encoded, they are not the file's name.
_PATTERN = frozenset("{}[]*?\\%")
# Commits from one checkpoint to the next, as in Spark's Delta.
_CHECKPOINT_INTERVAL = 10


def read_rows(session: SparkSession, path: Path, table: DeltaTable) -> DataFrame:
    """The rows of a table at the version that `table` is open at; columns have their metadata."""
    files = pa.table(table.get_add_actions())
    names = files["path"].to_pylist()
    is_small = len(names) <= _MOST_FILES and sum(files["size_bytes"].to_pylist()) <= _MOST_BYTES
    if is_small and can_read(path, table, names):
        return read_files(session, path, table, names)
    version = str(table.version())
    return session.read.format("delta").option("versionAsOf", version).load(str(path))


def can_read(path: Path, table: DeltaTable, names: list[str]) -> bool:
    """Whether Spark can read files of a table directly.

    The files must have exactly the table's rows, and Spark must find them by their names.
    """
    return _holds_rows(table) and not any(_PATTERN.intersection(str(path / name)) for name in names)


def read_files(session: SparkSession, path: Path, table: DeltaTable, names: list[str]) -> DataFrame:
    """The rows of some files of a table, for which `can_read` is true."""
    schema = T.StructType.fromJson(json.loads(table.schema().to_json()))
    if not names:
        return session.createDataFrame([], schema)
    return session.read.schema(schema).parquet(*(str(path / name) for name in names))


def is_plain(table: DeltaTable) -> bool:
    """Whether Walgate may both read and commit the files of a table directly."""
    return is_ours(table) and _holds_rows(table)


def is_ours(table: DeltaTable) -> bool:
    """Whether delta-rs may commit files to a table: no feature or property asks for more."""
    protocol = table.protocol()
    features = protocol.writer_features
    is_known = (
        protocol.min_writer_version <= _PLAIN_VERSION
        if features is None
        else _WRITER_FEATURES.issuperset(features)
    )
    return (
        is_known
        and _PROPERTIES.issuperset(table.metadata().configuration)
        and not table.metadata().partition_columns
    )


def has_schema(table: DeltaTable, fields: list[T.StructField]) -> bool:
    """Whether a table has exactly these columns, with the same metadata."""
    own: list[object] = json.loads(table.schema().to_json())["fields"]
    return own == [field.jsonValue() for field in fields]


def write_files(rows: DataFrame, path: Path) -> list[AddAction]:
    """Write rows to files in a table's folder; no commit names them yet."""
    with attempting(path) as folder:
        written = folder / "rows"
        rows.write.parquet(str(written))
        return _bring_in(written, path)


def write_file(rows: pa.Table, path: Path) -> list[AddAction]:
    """Write rows to one file in a table's folder, as `write_files` does; no file without rows."""
    with attempting(path) as folder:
        pq.write_table(rows, folder / f"part-{uuid.uuid4()}.parquet")
        return _bring_in(folder, path)


def _bring_in(folder: Path, path: Path) -> list[AddAction]:
    """Move the files that have rows into a table's folder; return an add action for each."""
    added: list[AddAction] = []
    for file in sorted(folder.glob("*.parquet")):
        footer = pq.read_metadata(file)
        if footer.num_rows:
            file.replace(path / file.name)
            added.append(describe_file(path / file.name, read_statistics(footer)))
    return added


def describe_file(file: Path, statistics: str) -> AddAction:
    """The action by which a commit adds a file that is in its table's folder."""
    return AddAction(
        path=file.name,
        size=file.stat().st_size,
        partition_values={},
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=statistics,
    )


def commit_files(
    path: Path,
    table: DeltaTable,
    added: list[AddAction],
    mode: str,
    *,
    reached: tuple[Epoch, Bound] | None,
    lossy: Losses | None,
    fields: list[T.StructField] | None = None,
) -> None:
    """Commit files to a table, with the bound that it has reached and its counts of lost values.

    `is_ours` must be true of the table. `added` may be empty. The commit extends exactly the
    version of `table`. If `reached` is None, the table's bound stays. An overwritten table gets the
    columns of `fields`, if they differ. The files are on the disk before the commit, and the commit
    is on the disk when this function returns.
    Raises: DeltaError if another commit came between; MergeError if the disk refuses it; OSError.
    """
    schema = table.schema()
    if mode == "overwrite" and fields is not None and not has_schema(table, fields):
        schema = Schema.from_json(T.StructType(fields).json())
    actions: list[AddAction | RemoveAction] = [*added]
    bounds = [] if reached is None else [Transaction(reached[0].app, int(reached[1].lsn))]
    forced = require_forced(path, [file.path for file in added])
    table.create_write_transaction(
        actions,
        mode,
        schema,
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": format_losses(lossy)},
            app_transactions=bounds,
            # After another commit, the rows that this one is based on may be out of date.
            max_commit_retries=0,
        ),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    )
    if (table.version() + 1) % _CHECKPOINT_INTERVAL == 0:
        newest = DeltaTable(path)
        newest.create_checkpoint()
        newest.cleanup_metadata()
    version = table.version() + 1
    require_durable(path, above=version - 1, through=version, forced=forced)


def _holds_rows(table: DeltaTable) -> bool:
    """Whether the files of a table have exactly its rows: all of them, and no deleted ones."""
    protocol = table.protocol()
    is_old = protocol.min_reader_version == 1
    return (
        (is_old or _READER_FEATURES.issuperset(protocol.reader_features or {"another"}))
        and not table.metadata().partition_columns
        and not _has_deletions(table)
    )


def _has_deletions(table: DeltaTable) -> bool:
    batches = pa.RecordBatchReader.from_stream(table.deletion_vectors())
    return any(batch.num_rows for batch in batches)
