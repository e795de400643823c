"""The folder of one attempt to write a table. It lies in the table's folder, hidden from readers.

Each attempt has its own folder, so no attempt commits the files of another attempt. Files leave it
just before their commit. A second folder then has a record of them until the commit has returned.
By it, the next merge removes the files of a process that died in between.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cdc_core.lake_layout import ATTEMPTS, MOVED, name_attempt, name_commit
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake.lake import open_table


@contextmanager
def attempting(table: LakePlace) -> Iterator[LakePlace]:
    """Make an empty folder in a table's folder; remove it with its content after the block."""
    folder = _make_folder(table)
    try:
        yield folder
    finally:
        folder.remove_folder()


@contextmanager
def moving_in(table: LakePlace, names: Sequence[str], *, version: int) -> Iterator[None]:
    """Record the files that a block moves into a table's folder and commits as a version.

    The record stays if the block raises an error, because the commit may have succeeded.
    """
    if not names:
        yield
        return
    folder = _make_folder(table)
    record = folder / MOVED
    record.write_text(json.dumps({"version": version, "files": [*names]}))
    # Otherwise a power failure could keep the files and lose the record.
    for place in (record, folder, table):
        place.sync()
    yield
    folder.remove_folder()


def clear_attempts(table: LakePlace) -> None:
    """Remove what dead processes left. The caller must hold the table's lock."""
    for folder in table.list_matching(ATTEMPTS):
        if (folder / MOVED).exists():
            _remove_uncommitted(table, folder / MOVED)
        folder.remove_folder()


def _remove_uncommitted(table: LakePlace, record: LakePlace) -> None:
    """Remove the recorded files, unless the recorded version or a later one contains them."""
    try:
        moved = json.loads(record.read_text())
    except ValueError:  # The process died before it had written the record, so it moved no file.
        return
    opened = open_table(table)
    if opened is None:
        return
    versions = range(moved["version"], opened.version() + 1)
    commits = [table / name_commit(version) for version in versions]
    # If the file of a commit is missing, it may have named any of the files: keep them all.
    if not all(commit.exists() for commit in commits):
        return
    committed = "".join(commit.read_text() for commit in commits)
    for name in moved["files"]:
        if name not in committed:
            (table / name).remove()


def _make_folder(table: LakePlace) -> LakePlace:
    folder = table / name_attempt(uuid.uuid4())
    folder.make_new_folder()
    return folder
