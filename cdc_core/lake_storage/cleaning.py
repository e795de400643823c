"""Removes what no reader of a Delta table needs: files, commits and checkpoints.

Some versions of a table are needed: the newest one, those that the caller names, and each version
that was the newest one within the time of grace. A reader opens one of these. A data file stays if
a needed version has it. A commit or checkpoint stays if it is needed to read a needed version, so
the log of a table may have gaps. Everything else goes once it is older than the grace: the files of
other versions, and files that no commit names because their writer died.

A data file that is newer than the newest commit also stays, because its writer may still commit
it. The writer of an older file extends a version that is no longer the newest, so Delta refuses it.

The commits of some tables go before the data files that they removed. Tombstones then say when the
table lost a file, and the file stays for the grace.

Source: the Delta protocol, sections Delta Log Entries and Checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdc_core.crash_points import reach
from cdc_core.lake_layout import DATA_FILES, DELTA_LOG, LOG_FILES
from cdc_core.lake_storage.delta_log import DeltaLog, UnknownCheckpoint
from cdc_core.lake_storage.place import LakePlace, ListedFile
from cdc_core.lake_storage.tombstones import Tombstones

# Early commits go after this time. A reader of a version must have read them by then. Seconds.
COMMIT_LIFE_S = 1200.0
# The most files that are removed under one hold of the lock, for which others wait.
_FILES_AT_ONCE = 100


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

    `needed` are the files of needed versions, and those that a table with early commits lost in
    the time of the grace. `young` are other files that are too young to remove. If `problem` is not
    None, it says why something was not removed.
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


@dataclass(frozen=True, slots=True)
class EarlyCommits:
    """Commits that go before the data files that they removed: those written before a time.

    Readers open only the newest version of such a table. Unit: microseconds since 1970.
    `tombstones` keep what the commits removed.
    """

    before_us: int
    tombstones: Tombstones


def clean_table(
    table: LakePlace,
    *,
    named: Collection[int],
    before_us: int,
    lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    early: EarlyCommits | None = None,
) -> Cleaned:
    """Remove what is not needed and was written before a time, in microseconds since 1970.

    `named` are versions that are needed. Also needed are the newest version, and those that were
    the newest one after `before_us`. A version that does not exist is not needed. `lock` keeps
    writers away that may commit a file long after they wrote it; it is held only while files are
    removed.
    With `early`, only the newest version is needed, and those that were the newest one after
    `early.before_us`. The data files that the table lost after `before_us` stay, too.
    Raises: what `lock` raises.
    """
    commits_before_us = before_us if early is None else max(before_us, early.before_us)
    try:
        log = DeltaLog.list(table)
        needed = find_needed(log, named, before_us=commits_before_us)
        kept_data = log.read_files(needed)
        if early is not None:
            kept_data |= early.tombstones.find(log, since_us=before_us)
        kept_commits = set[str]().union(*map(log.list_names, needed))
        # The writer of a newer file may still commit it.
        limit_us = min(before_us, log.commits[log.newest].modified_us)
        data = _divide(table, DATA_FILES, kept_data, limit_us)
        commits = _divide(table / DELTA_LOG, LOG_FILES, kept_commits, commits_before_us)

        def read_newer() -> set[str]:
            """What somebody has committed since `log` was listed."""
            newest = DeltaLog.list(table)
            newer = find_needed(newest, named, before_us=commits_before_us) - needed
            return newest.read_files(newer)

        removed = _remove(table, data.old, lock, read_newer)
        if early is not None:
            # On a full disk, this needs the space that the removed files had.
            early.tombstones.write()
        reach("between_cleanings")
        # No commit that came after the log was listed is among these: it is young.
        removed += _remove(table / DELTA_LOG, commits.old, lock, set)
    except (UnknownCheckpoint, OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return Cleaned(problem=f"not everything was removed from {table}: {reason}")
    needed_space = Space.of(data.needed) + Space.of(commits.needed)
    return Cleaned(needed_space, Space.of(data.young) + Space.of(commits.young), removed)


def find_needed(log: DeltaLog, named: Collection[int], *, before_us: int) -> set[int]:
    """The needed versions of a table that exist; see `clean_table`."""
    newest = log.newest
    # A version is the newest one until the next commit.
    recent = {version - 1 for version, file in log.commits.items() if file.modified_us >= before_us}
    return {version for version in {newest, *recent, *named} if 0 <= version <= newest}


@dataclass(frozen=True, slots=True)
class _Divided:
    """The files of a folder: those that are needed, young ones, and those that go."""

    needed: list[ListedFile]
    young: list[ListedFile]
    old: list[ListedFile]


def _divide(
    folder: LakePlace, suffixes: tuple[str, ...], kept: Collection[str], before_us: int
) -> _Divided:
    divided = _Divided([], [], [])
    for file in sorted(folder.list_files(), key=lambda file: file.name):
        # delta-rs writes a file under its name and `#` with a number, and renames it.
        name = file.name.partition("#")[0]
        if name.startswith((".", "_")) or not name.endswith(suffixes):
            continue
        is_old = file.modified_us < before_us
        of = divided.needed if file.name in kept else divided.old if is_old else divided.young
        of.append(file)
    return divided


def _remove(
    folder: LakePlace,
    files: Sequence[ListedFile],
    lock: Callable[[], AbstractContextManager[object]],
    read_newer: Callable[[], set[str]],
) -> Space:
    removed = Space()
    for first in range(0, len(files), _FILES_AT_ONCE):
        with lock():
            newer = read_newer()
            gone = [f for f in files[first : first + _FILES_AT_ONCE] if f.name not in newer]
            after_each = partial(reach, "after_file_removed")
            folder.remove_files([file.name for file in gone], after_each=after_each)
        removed += Space.of(gone)
    return removed
