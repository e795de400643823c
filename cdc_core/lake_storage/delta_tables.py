"""Opens Delta tables of the lake by delta-rs."""

from __future__ import annotations

from deltalake import DeltaTable

from cdc_core.lake_storage.place import LakePlace

_CHECKPOINT_INTERVAL = "delta.checkpointInterval"


def open_delta(table: LakePlace, *, version: int | None = None) -> DeltaTable:
    """Open a table at a version, or at its newest one. Raises: TableNotFoundError; DeltaError."""
    return DeltaTable(table.uri, version=version, storage_options=table.find_options())


def choose_checkpoints(place: LakePlace) -> dict[str, str]:
    """The properties of a new table that decide how often delta-rs writes a checkpoint.

    To open a table in a store takes two requests for each commit since the checkpoint.
    """
    return {} if place.find_options() is None else {_CHECKPOINT_INTERVAL: "10"}


def renew_access(place: LakePlace, table: DeltaTable) -> DeltaTable:
    """Open a table at its version with the credentials of now, which may be others than before.

    Raises: DeltaError; OSError.
    """
    if place.find_options() is None:
        return table
    return open_delta(place, version=table.version())


def is_delta(table: LakePlace) -> bool:
    """Whether a Delta table is at a place. Raises: OSError."""
    return DeltaTable.is_deltatable(table.uri, storage_options=table.find_options())
