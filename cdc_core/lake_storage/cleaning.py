"""Removes what no reader of a Delta table needs: files, commits and checkpoints.

Some versions of a table are needed: the newest one, those that the caller names, and each version
that was the newest one within the time of grace. A reader opens one of these. A data file stays if
a needed version has it. A commit or checkpoint stays if it is needed to read a needed version, so
the log of a table may have gaps. Everything else goes once it is older than the grace: the files of
other versions, and files that no commit names because their writer died.

Source: the Delta protocol, sections Delta Log Entries and Checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pyarrow as pa

from cdc_core.crash_points import reach
from cdc_core.lake_layout import DATA_FILES, DELTA_LOG, LOG_FILES, name_local_checksum
from cdc_core.lake_storage.delta_log import DeltaLog, UnknownCheckpoint
from cdc_core.lake_storage.place import LakePlace, ListedFile


@dataclass(frozen=True, slots=True)
class Space:
    """A number of files, and their size in bytes."""

    files: int = 0
    size: int = 0

    def __add__(self, other: Space) -> Space:
        """The files of both."""
        return Space(self.files + other.files, self.size + other.size)

    @classmethod
    def of(cls, files: Iterable[ListedFile]) -> Space:
        """The space of some files."""
        sizes = [file.size for file in files]
        return cls(len(sizes), sum(sizes))


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a table's folder has after a cleaning, and what the cleaning removed.

    `needed` are the files of needed versions, `young` the files that will go once they are older
    than the grace. If `problem` is not None, nothing was removed, for this reason.
    """

    needed: Space = Space()
    young: Space = Space()
    removed: Space = Space()
    problem: str | None = None

    def __add__(self, other: Cleaned) -> Cleaned:
        """The sum of two folders."""
        return Cleaned(
            self.needed + other.needed,
            self.young + other.young,
            self.removed + other.removed,
            self.problem or other.problem,
        )


def clean_table(
    table: LakePlace,
    *,
    named: Collection[int],
    before_us: int,
    lock: AbstractContextManager[object] | None = None,
) -> Cleaned:
    """Remove what is not needed and was written before a time, in microseconds since 1970.

    `named` are versions that are needed, besides the newest one and those that were the newest one
    after `before_us`. A version that does not exist is not needed. `lock` keeps writers away that
    may commit a file long after they wrote it; the function holds it while it removes.
    Raises: OSError; what `lock` raises.
    """
    try:
        log = DeltaLog.list(table)
        needed = find_needed(log, named, before_us=before_us)
        names = log.read_files(needed)
        with lock or nullcontext():
            # Without the lock, somebody may have committed since.
            log = DeltaLog.list(table)
            newer = find_needed(log, named, before_us=before_us)
            names |= log.read_files(newer - needed)
            return _remove_unneeded(log, needed | newer, names, before_us)
    except (UnknownCheckpoint, ValueError, KeyError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return Cleaned(problem=f"nothing was removed from {table}: {reason}")


def find_needed(log: DeltaLog, named: Collection[int], *, before_us: int) -> set[int]:
    """The needed versions of a table that exist; see `clean_table`."""
    newest = log.newest
    # A version is the newest one until the next commit.
    recent = {version - 1 for version, file in log.commits.items() if file.modified_us >= before_us}
    return {version for version in {newest, *recent, *named} if 0 <= version <= newest}


def _remove_unneeded(
    log: DeltaLog, needed: Collection[int], names: Collection[str], before_us: int
) -> Cleaned:
    table, kept = log.table, set[str]()
    for version in needed:
        kept |= log.list_names(version)
    files = [file for file in table.list_files() if _matches(file, DATA_FILES)]
    # A file of the log that came after the log was listed is young.
    commits = [file for file in (table / DELTA_LOG).list_files() if _matches(file, LOG_FILES)]
    cleaned = _remove(table, files, names, before_us)
    reach("between_cleanings")
    return cleaned + _remove(table / DELTA_LOG, commits, kept, before_us)


def _remove(
    folder: LakePlace, files: list[ListedFile], kept: Collection[str], before_us: int
) -> Cleaned:
    needed = [file for file in files if file.name in kept]
    others = [file for file in files if file.name not in kept]
    old = [file for file in others if file.modified_us < before_us]
    for file in sorted(old, key=lambda file: file.name):
        (folder / file.name).remove()
        (folder / name_local_checksum(file.name)).remove()
        reach("after_file_removed")
    young = [file for file in others if file.modified_us >= before_us]
    return Cleaned(Space.of(needed), Space.of(young), Space.of(old))


def _matches(file: ListedFile, suffixes: tuple[str, ...]) -> bool:
    return not file.name.startswith((".", "_")) and file.name.endswith(suffixes)
