"""The lake of a test, which is a folder of this host."""

from __future__ import annotations

from pathlib import Path

from cdc_core.lake_storage.place import LakePlace


def path_of(place: LakePlace) -> Path:
    """The path of a place in the lake, for what only a test does there."""
    return Path(place.uri)
