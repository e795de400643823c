"""Forces files to the disk. If the disk refuses a file, writes its bytes to a new file.

Linux reports a failed write to one fsync only. The next fsync of that file succeeds, although the
disk never got the bytes. So after a refusal only a copy is durable: a new file with the same bytes,
whose own fsync succeeded and which then took the old file's name. A process cannot know which fsync
failed in an earlier process, so it rewrites the newest commit of the earlier one.

What was written to an object store is durable at once, so there is nothing to do.

Neither Spark's Delta nor delta-rs calls fsync after a commit on a local disk. The files reach the
disk in any order: the disk may have a commit, but not a file that the commit names.

Source: fsync(2); the Delta protocol, sections Delta Log Entries, Add File, and Deletion Vector
Descriptor Schema.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from cdc_core.lake_layout import (
    CHECKPOINTS,
    COPIES,
    DELTA_LOG,
    LAST_CHECKPOINT,
    name_checkpoint,
    name_commit,
    name_local_checksum,
)
from cdc_core.lake_storage.place import LakePlace

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20
# Seconds. No copy takes this long: the process that made an older copy has died.
_LONGEST_COPY_S = 3600.0


def force_files(table: LakePlace, names: Collection[str]) -> frozenset[LakePlace]:
    """Force data files of a Delta table to the disk, before a commit names them.

    Return the paths that are on the disk: the files and the table's folder.
    If a commit reaches the disk before its files, nobody can read the table. If the disk refuses a
    file, write a new file in its place. Raises: OSError if the disk refuses that, too; then none
    of the files is left.
    """
    files = [table / name for name in names]
    try:
        for file in files:
            try:
                file.sync()
            except OSError:
                file.rewrite()
        if files:
            table.sync()
    except OSError:
        for file in files:
            with suppress(OSError):
                file.remove()
        raise
    return frozenset([*files, table] if files else files)


def make_durable(
    table: LakePlace, *, above: int, through: int, forced: Collection[LakePlace] = frozenset()
) -> None:
    """Force the files of a Delta table's commits between two versions to the disk.

    The files in `forced` are on the disk already. If the disk refuses any other file, write all
    files that are not in `forced` to new files. Raises: OSError if the disk refuses those, too.
    """
    versions = range(above + 1, through + 1)
    try:
        _handle_commits(table, versions, lambda file: file.sync(), except_for=forced)
    except OSError:
        _rewrite(table, versions, except_for=forced)


def rewrite_commits(table: LakePlace, *, above: int, through: int) -> None:
    """Write the files of the commits between two versions to new files, durably.

    Raises: OSError.
    """
    _rewrite(table, range(above + 1, through + 1), except_for=frozenset())


def locate_commit(table: LakePlace, version: int) -> LakePlace:
    """The path of a commit's file."""
    return table / name_commit(version)


def list_commit(table: LakePlace, version: int) -> list[LakePlace]:
    """The files of a commit in the table's log: the commit, and its checkpoint if it has one."""
    commit, checkpoint = locate_commit(table, version), table / name_checkpoint(version)
    if not checkpoint.exists():
        return [commit]
    # The process may have ended between the checkpoint and this file, which says that it is there.
    last = table / DELTA_LOG / LAST_CHECKPOINT
    return [commit, checkpoint, *([last] if last.exists() else [])]


def remove_old_copies(folder: LakePlace) -> None:
    """Remove the copies that a killed rewrite left. The copies of a running one are younger.

    There are none on a storage on which everything is durable at once.
    """
    if folder.is_durable_at_once:
        return
    for copied in folder.list_matching(COPIES):
        with suppress(FileNotFoundError):
            if time.time() - copied.read_modified_us() / 1e6 > _LONGEST_COPY_S:
                copied.remove()


def _rewrite(table: LakePlace, versions: range, *, except_for: Collection[LakePlace]) -> None:
    for folder in (table, table / DELTA_LOG):
        remove_old_copies(folder)
    _handle_commits(table, versions, lambda file: file.rewrite(), except_for=except_for)


def _handle_commits(
    table: LakePlace,
    versions: range,
    handle: Callable[[LakePlace], None],
    *,
    except_for: Collection[LakePlace],
) -> None:
    """Call `handle` with each file that the commits added, then make the names durable.

    This leaves out the files and folders in `except_for`. It reads nothing of a storage on which
    everything is durable at once.
    """
    if table.is_durable_at_once:
        return
    log = table / DELTA_LOG
    for file in sorted({*_list_files(table, log, versions)}.difference(except_for)):
        if not file.exists():
            continue  # VACUUM removed the file. A reader that still needs it fails.
        handle(file)
        # Spark refuses a file whose checksum file is torn.
        sums = file.parent / name_local_checksum(file.name)
        if sums.exists():
            handle(sums)
    # A second fsync of a folder can be trusted: if the journal of a file system fails, the file
    # system takes no more writes at all.
    for folder in {table, log}.difference(except_for):
        folder.sync()
    if versions and versions[0] == 0:
        # The process that made the table may have made the folders above it.
        for folder in (table.parent, table.parent.parent, table.parent.parent.parent):
            folder.sync()


def _list_files(table: LakePlace, log: LakePlace, versions: range) -> Iterator[LakePlace]:
    for version in versions:
        commit = locate_commit(table, version)
        if not commit.exists():
            continue  # A checkpoint replaced this commit.
        yield commit
        for line in commit.read_text().splitlines():
            if (added := json.loads(line).get("add")) is not None:
                yield table / unquote(added["path"])
                if (vector := name_deletions(added.get("deletionVector"))) is not None:
                    yield table / vector
    if versions:
        first = f"{versions[0]:020}"
        yield from (file for file in log.list_matching(CHECKPOINTS) if file.name >= first)
        yield from log.list_matching(LAST_CHECKPOINT)


def name_deletions(vector: dict[str, Any] | None) -> str | None:
    """The file of a deletion vector, named by a UUID in Z85; a vector in the log has no file."""
    if vector is None or vector["storageType"] != "u":
        return None
    place = vector["pathOrInlineDv"]
    folder, name = place[:-_UUID_CHARACTERS], place[-_UUID_CHARACTERS:]
    file = f"deletion_vector_{_decode_uuid(name)}.bin"
    return f"{folder}/{file}" if folder else file


def _decode_uuid(text: str) -> uuid.UUID:
    words = b""
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + _Z85.index(character)
        words += number.to_bytes(4, "big")
    return uuid.UUID(bytes=words)
