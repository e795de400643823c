"""Makes a table of the lake, and allows it the types that it needs."""

from __future__ import annotations

from delta.tables import DeltaTable as SparkTable
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from cdc_core.lake_storage.own_commits import commit_once
from cdc_core.lake_storage.place import LakePlace
from cdc_core.targets import Target, TargetKind
from spark_jobs.delta.direct_parquet import (
    KEEPING_PROPERTIES,
    TABLE_PROPERTY,
    VECTORS_PROPERTY,
)
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Lake, open_table

# Delta turns this feature on by itself only when it creates a table.
_LOCAL_TIME = "timestampNtz"


def create_target(
    session: SparkSession, lake: Lake, target: Target, fields: list[T.StructField]
) -> DeltaTable:
    """Create a target without rows. Raises: DeltaError if another process created it first."""
    path, schema = lake.locate_target(target), T.StructType(fields)
    if target.kind is TargetKind.ROWS and lake.wants_deletion_vectors(target.table):
        # delta-rs would add the feature variantType, which other readers may lack.
        _create_by_spark(session, path, str(target), schema)
    else:
        # Spark takes 0.7 s for the same.
        _create_by_delta_rs(path, str(target), schema)
    return _require_version(path, 0)


def _create_by_delta_rs(path: LakePlace, name: str, schema: T.StructType) -> None:
    def create(properties: CommitProperties) -> None:
        DeltaTable.create(
            path.uri,
            Schema.from_json(schema.json()),
            description=name,
            configuration={TABLE_PROPERTY: name, VECTORS_PROPERTY: "false", **KEEPING_PROPERTIES},
            storage_options=path.find_options(),
            commit_properties=properties,
            # delta-rs does not know Walgate's property.
            raise_if_key_not_exists=False,
        )

    try:
        commit_once(path, 0, create)
    except ValueError as error:
        # The text of the error may have names only. One such table must not end the round.
        raise DeltaError(f"delta-rs refuses the columns of {path}: {error}") from error


def _create_by_spark(
    session: SparkSession, path: LakePlace, name: str, schema: T.StructType
) -> None:
    creation = (
        SparkTable.createIfNotExists(session)
        .location(path.uri)
        .addColumns(schema)
        .comment(name)
        .property(TABLE_PROPERTY, name)
        .property(VECTORS_PROPERTY, "true")
    )
    for key, value in KEEPING_PROPERTIES.items():
        creation = creation.property(key, value)
    creation.execute()


def allow_types(
    session: SparkSession, path: LakePlace, table: DeltaTable, fields: list[T.StructField]
) -> DeltaTable:
    """Allow timestamps without a time zone, if a table needs them, in a commit before the rows.

    Raises: DeltaError if another process committed in between.
    Source: Delta protocol, section Timestamp without timezone (TimestampNtz).
    """
    allowed = table.protocol().writer_features or []
    needed = T.StructType(fields).json()
    if _LOCAL_TIME in allowed or f'"{T.TimestampNTZType().typeName()}"' not in needed:
        return table
    SparkTable.forPath(session, path.uri).addFeatureSupport(_LOCAL_TIME)
    return _require_version(path, table.version() + 1)


def add_columns(path: LakePlace, table: DeltaTable, fields: list[T.StructField]) -> DeltaTable:
    """Add columns to a table, in a commit before the rows. Its older rows have NULL in them.

    `direct_parquet.allows_direct_commits` must be true of the table.
    Raises: DeltaError if another process committed in between.
    """
    added = Schema.from_json(T.StructType(fields).json()).fields
    version = table.version() + 1

    def add(properties: CommitProperties) -> None:
        table.alter.add_columns(added, commit_properties=properties)

    commit_once(path, version, add)
    return _require_version(path, version)


def _require_version(path: LakePlace, version: int) -> DeltaTable:
    table = require_table(path)
    if table.version() != version:
        raise CommitFailedError(f"another process has committed to {path}")
    require_durable(path, above=version - 1, through=version)
    return table


def require_table(path: LakePlace) -> DeltaTable:
    """Open a table that exists."""
    table = open_table(path)
    assert table is not None
    return table
