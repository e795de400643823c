"""Reads and writes a Delta table's files directly, as Parquet; `committer` commits them.

Through Delta, Spark plans some ten jobs over the table's log for every commit, and two for every
read: 2 s of CPU for a table, however small. A table is eligible if Delta has nothing else to do for
it: no deletion vectors, mapped columns, constraints or change feed.

Source: the Delta protocol, sections Add File and Remove File, Transaction Identifiers.
"""

from __future__ import annotations

import json
from errno import ENOENT
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from cdc_core.lake_layout import CHECKPOINT_PROPERTIES
from cdc_core.lake_storage.arrow_files import read_footer
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.file_bounds import read_statistics
from spark_jobs.delta.file_writer import WrittenFile

TABLE_PROPERTY = "walgate.table"
VECTORS_PROPERTY = "delta.enableDeletionVectors"
# Maintenance decides which versions of a table stay, so Delta must remove no commit by itself.
KEEPING_PROPERTIES = {"delta.enableExpiredLogCleanup": "false", **CHECKPOINT_PROPERTIES}

_ENFORCING = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
_VECTORS_FEATURE = "deletionVectors"
_READER_FEATURES = frozenset({_VECTORS_FEATURE, "timestampNtz"})
_WRITER_FEATURES = _READER_FEATURES | {"appendOnly", "invariants"}
# If the protocol lists no features, Walgate knows all features up to this version.
_PLAIN_VERSION = 2
_PROPERTIES = frozenset({VECTORS_PROPERTY, TABLE_PROPERTY, *KEEPING_PROPERTIES})
# Limits of a direct read, which reads every file of a table. Delta would skip some.
_MAX_BYTES = 64 << 20
_MAX_FILES = 32
# To read more files than this from an object store, Spark lists their folder.
_FEW_FILES = 8
# Spark takes these in a path as a pattern. Encoded, they are not the file's name.
_PATTERN = frozenset("{}[]*?\\%")


def read_rows(session: SparkSession, path: LakePlace, table: DeltaTable) -> DataFrame:
    """The rows of a table at the version that `table` is open at; columns have their metadata."""
    files = pa.table(table.get_add_actions())
    names = files["path"].to_pylist()
    is_small = len(names) <= _MAX_FILES and sum(files["size_bytes"].to_pylist()) <= _MAX_BYTES
    if is_small and can_read(path, table, names):
        return read_files(session, path, table, names)
    version = str(table.version())
    allow_old_versions(session)
    return session.read.format("delta").option("versionAsOf", version).load(path.uri)


def allow_old_versions(session: SparkSession) -> None:
    """Let a session read versions that are older than the age at which Delta would remove files.

    Maintenance decides which versions stay. Delta refuses all but the newest after that age.
    """
    session.conf.set(_ENFORCING, "false")


def read_fields(table: DeltaTable) -> list[T.StructField]:
    """The columns of a table, with their metadata."""
    return T.StructType.fromJson(json.loads(table.schema().to_json())).fields


def can_read(path: LakePlace, table: DeltaTable, names: list[str]) -> bool:
    """Whether Spark can read files of a table directly.

    The files must have exactly the table's rows, and Spark must find them by their names.
    """
    return not list_deletions(table) and can_read_files(path, table, names)


def has_exact_files(table: DeltaTable) -> bool:
    """Whether the files of a table have exactly its rows, so that Arrow can read them directly."""
    return _has_plain_files(table) and not list_deletions(table)


def can_read_files(path: LakePlace, table: DeltaTable, names: list[str]) -> bool:
    """Whether files of a table can be read directly, if the caller leaves out deleted rows."""
    return _has_plain_files(table) and not any(
        _PATTERN.intersection((path / name).uri) for name in names
    )


def read_files(
    session: SparkSession, path: LakePlace, table: DeltaTable, names: list[str]
) -> DataFrame:
    """The rows of some files of a table, for which `can_read` is true.

    Raises: OSError or AnalysisException if one of the files is missing.
    """
    schema = T.StructType(read_fields(table))
    if not names:
        return session.createDataFrame([], schema)
    reader = session.read.schema(schema)
    if not path.lists_by_request or len(names) <= _FEW_FILES:
        return reader.parquet(*((path / name).uri for name in names))
    # Given names, Spark asks for each file three times before it opens it. It lists a folder once,
    # and opens only the files that the condition below names. It would not notice a missing file.
    rows = reader.parquet(path.uri)
    listed = {unquote(uri).rpartition("/")[2] for uri in rows.inputFiles()}
    if missing := set(names) - listed:
        raise FileNotFoundError(ENOENT, "a file of the table is missing", (path / min(missing)).uri)
    return rows.where(rows.metadataColumn("_metadata").getField("file_name").isin(names))


def is_plain(table: DeltaTable) -> bool:
    """Whether Walgate may both read and commit the files of a table directly."""
    return allows_direct_commits(table) and has_exact_files(table)


def allows_direct_commits(table: DeltaTable) -> bool:
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


def has_columns(table: DeltaTable, fields: list[T.StructField]) -> bool:
    """Whether a table has exactly these columns, in any order, with the same metadata.

    A MERGE puts a new column last.
    """
    own = {field["name"]: field for field in json.loads(table.schema().to_json())["fields"]}
    return own == {field.name: field.jsonValue() for field in fields}


def write_files(rows: DataFrame, attempt: Attempt) -> list[WrittenFile]:
    """Write rows by Spark to files of an attempt; files without rows are removed."""
    written: list[WrittenFile] = []
    for file in attempt.take_from_spark(rows.write.parquet):
        footer = read_footer(file)
        if footer.num_rows:
            written.append(WrittenFile(file, footer.num_rows, read_statistics(footer)))
        else:
            file.remove()
    return written


def list_deletions(table: DeltaTable) -> set[str]:
    """The files of a table that have a deletion vector, by name."""
    if _VECTORS_FEATURE not in (table.protocol().reader_features or ()):
        return set()
    # delta-rs reads the whole Delta log for this.
    batches = pa.RecordBatchReader.from_stream(table.deletion_vectors())
    found = {str(path) for batch in batches for path in batch["filepath"].to_pylist()}
    return {unquote(path).rpartition("/")[2] for path in found}


def _has_plain_files(table: DeltaTable) -> bool:
    """Whether the files of a table have its rows, and perhaps rows that were deleted in them."""
    protocol = table.protocol()
    features = protocol.reader_features or ()
    # A newer protocol without a list of features is unknown.
    is_known = protocol.min_reader_version == 1 or (
        len(features) > 0 and _READER_FEATURES.issuperset(features)
    )
    return is_known and not table.metadata().partition_columns
