"""Locks of a lake: one process at a time commits to a table, even under two configurations.

A lock saves work. A commit names the version that it extends, so Delta refuses the second of two.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from cdc_core.lake_storage.file_locks import hold_file_lock
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_locks import hold_object_lock
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.place import LakePlace


def hold_lock(file: LakePlace, name: str, *, jvm: int | None) -> AbstractContextManager[None]:
    """Hold the lock of a name while a block runs; `jvm` is the process that commits.

    Raises: MergeError if another process keeps the lock, or the file system has no locks; OSError.
    """
    if isinstance(file, ObjectPlace):
        return hold_object_lock(file, name)
    assert isinstance(file, LocalPlace)
    return hold_file_lock(file, name, jvm=jvm)
