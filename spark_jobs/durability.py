"""Commits of a table made as durable as the cut that names them.

Neither Delta's commits on a local disk nor those of delta-rs reach the disk by themselves: after a
power failure a cut could name a version that is gone. So the files of each commit are forced to the
disk before the cut is written.

Source: the Delta protocol, sections Delta Log Entries, Add File, and Deletion Vector Descriptor
Schema; fsync(2).
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cdc_core.errors import MergeError, Retry

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20


def sync_commits(table: Path, *, above: int, through: int) -> None:
    """Force to the disk what the commits of a Delta table between two versions have brought.

    Raises: MergeError if the storage fails to. A second fsync then proves nothing: Linux reports an
    error once.
    """
    log = table / "_delta_log"
    try:
        _sync({*_list_files(table, log, range(above + 1, through + 1))})
        for folder in (table, log):
            _sync_file(folder)
        if above < 0:
            # The process that made the table may have made the folders above it.
            for folder in table.parents[:3]:
                _sync_file(folder)
    except OSError as exc:
        raise MergeError(
            f"the storage did not take the files of {table}: {exc.strerror or type(exc).__name__}",
            fix="mend the storage, then delete that folder: the next merge builds the table again",
            retry=Retry.AFTER_FIX,
        ) from exc


def _list_files(table: Path, log: Path, versions: range) -> Iterator[Path]:
    for version in versions:
        commit = log / f"{version:020}.json"
        if not commit.exists():
            continue  # A checkpoint has taken its place.
        yield commit
        for line in commit.read_text(encoding="utf-8").splitlines():
            if (added := json.loads(line).get("add")) is not None:
                yield table / unquote(added["path"])
                yield from _list_deletions(table, added.get("deletionVector"))
    if versions:
        first = f"{versions[0]:020}"
        yield from (file for file in log.glob("*.checkpoint*.parquet") if file.name >= first)
        yield from (file for file in log.glob("_last_checkpoint"))


def _list_deletions(table: Path, vector: dict[str, Any] | None) -> Iterator[Path]:
    """The file of a deletion vector, whose name ends in a UUID in Z85; one in the log has none."""
    if vector is not None and vector["storageType"] == "u":
        place = vector["pathOrInlineDv"]
        folder, name = place[:-_UUID_CHARACTERS], place[-_UUID_CHARACTERS:]
        yield table / folder / f"deletion_vector_{_decode_uuid(name)}.bin"


def _decode_uuid(text: str) -> uuid.UUID:
    words = b""
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + _Z85.index(character)
        words += number.to_bytes(4, "big")
    return uuid.UUID(bytes=words)


def _sync(files: set[Path]) -> None:
    for file in sorted(files):
        _sync_file(file)
        # Spark reads no file whose sums were torn off.
        sums = file.with_name(f".{file.name}.crc")
        if sums.exists():
            _sync_file(sums)


def _sync_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
