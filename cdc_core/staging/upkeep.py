"""The upkeep of the log: trims it, compacts old files, and removes what nobody reads any more.

Only capture commits to the log, so capture does this, beside its appends. A trim is one commit,
which also records how far the log was trimmed. Compaction writes the entries of some old, small
files as one file, in a commit that changes no entry.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.crash_points import reach
from cdc_core.errors import Retry, StagingError
from cdc_core.lake_storage.arrow_files import open_input, read_footer
from cdc_core.lake_storage.cleaning import COMMIT_LIFE_S, EarlyCommits, clean_table
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.tombstones import Tombstones
from cdc_core.layout import CHANGES_SCHEMA
from cdc_core.staging.log_files import (
    FEWEST_FILES,
    LogPoint,
    StagedFile,
    choose_compacted,
    choose_trimmed,
    list_staged_files,
)
from cdc_core.staging.maintenance import MaintenanceLedger
from cdc_core.staging.parts import Part
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn

# Younger files are not compacted: merges still read them. Seconds.
SETTLED_S = 600.0
# Cleanings within the life of a commit.
_CLEANINGS = 4
# Bytes of a group in memory, before it is sorted.
_MAX_DECODED = 256 << 20
_ORDER = [("table", "ascending"), ("commit_lsn", "ascending"), ("seq", "ascending")]


class TendedLog(Protocol):
    """What the upkeep needs of the log."""

    changes_folder: LakePlace
    tombstones: Tombstones
    committing: AbstractContextManager[object]

    def open_newest(self) -> DeltaTable:
        """The log at the version of its last commit, as a table of its own."""
        ...

    def write_part(self, changes: pa.Table) -> Part:
        """Write entries to a part that no reader sees yet."""
        ...

    def replace_files(
        self, old: Sequence[StagedFile], new: Part | None, *, trimmed: LogPoint | None = None
    ) -> None:
        """Commit that a part takes the place of files; without a part, the files just go."""
        ...


@dataclass(slots=True)
class LogUpkeep:
    """The upkeep of one log by the session that appends to it.

    `ledger` says how far the log may be trimmed. Files that nobody reads any more go after
    `grace_s`. Commits go after `commit_life_s`, if that is shorter. Files younger than `settled_s`
    are not compacted. Units: seconds.
    """

    log: TendedLog
    ledger: MaintenanceLedger
    grace_s: float
    settled_s: float = SETTLED_S
    commit_life_s: float = COMMIT_LIFE_S
    _cleaned_at: float = float("-inf")
    # Files that take too much memory to be compacted with others.
    _wide: set[str] = field(default_factory=set)

    def do_step(self, epoch: int, confirmed: Lsn) -> bool:
        """Trim, compact or clean a little; return whether there may be more to do at once.

        `confirmed` is what the slot has confirmed in the session's epoch.
        Raises: StagingError; the log then has all entries that it had.
        """
        # Cleaning comes first: on a full disk, everything else fails.
        interval_s = min(self.commit_life_s / _CLEANINGS, self.grace_s)
        if self.grace_s != math.inf and time.monotonic() - self._cleaned_at >= interval_s:
            self._clean()
        with staging_errors("list the log"):
            files = list_staged_files(self.log.open_newest())
        report = self.ledger.read_newest()
        floor = None if report is None else report.floor
        confirmed_at = LogPoint(epoch, confirmed)
        trimmed = (
            [] if floor is None else choose_trimmed(files, floor=floor, confirmed=confirmed_at)
        )
        if trimmed:
            reach("before_log_trim")
            self.log.replace_files(trimmed, None, trimmed=max(file.end for file in trimmed))
            return True
        before_ms = int((time.time() - self.settled_s) * 1000)
        group = choose_compacted(files, before_ms=before_ms, wide=self._wide)
        if group:
            self._compact(group)
        return bool(group)

    def _compact(self, group: list[StagedFile]) -> None:
        """Compact as much of a group as fits in memory."""
        chosen, size = list[StagedFile](), 0
        with staging_errors("compact the log"):
            for file in group:
                size += _read_decoded_size(self.log.changes_folder / file.name)
                if size > _MAX_DECODED:
                    break
                chosen.append(file)
        if len(chosen) < len(group):
            # What follows this file is then a group of its own.
            self._wide.add(group[len(chosen)].name)
        if len(chosen) < FEWEST_FILES:
            self._wide |= {file.name for file in chosen}
        else:
            compact_files(self.log, chosen)

    def _clean(self) -> None:
        """Remove old files of the log's folder; readers open the newest version only."""
        with staging_errors("read the storage's clock"):
            now_us = self.log.changes_folder.read_clock_us()
        self._cleaned_at = time.monotonic()
        cleaned = clean_table(
            self.log.changes_folder,
            named=(),
            before_us=now_us - int(self.grace_s * 1e6),
            # An append looks for its parts, and commits them, under this lock.
            lock=lambda: self.log.committing,
            early=EarlyCommits(now_us - int(self.commit_life_s * 1e6), self.log.tombstones),
        )
        if cleaned.problem is not None:
            raise StagingError(
                cleaned.problem,
                fix="see Problems of maintenance in docs/operating.md",
                retry=Retry.AFTER_FIX,
            )


def _read_decoded_size(file: LakePlace) -> int:
    footer = read_footer(file)
    return sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))


def compact_files(log: TendedLog, group: list[StagedFile]) -> None:
    """Write the entries of some files as one file, sorted as a batch is. Raises: StagingError."""
    with staging_errors("compact the log"):
        read = []
        for file in group:
            with open_input(log.changes_folder / file.name) as source:
                read.append(pq.read_table(source, schema=CHANGES_SCHEMA, use_threads=False))
        entries = pa.concat_tables(read)
        del read
        if entries.num_rows != sum(file.rows for file in group):
            raise StagingError(
                f"cannot compact the log: {len(group)} files have {entries.num_rows} entries, but"
                f" the log counts {sum(file.rows for file in group)}",
                fix="let no other program write to the log",
                retry=Retry.AFTER_FIX,
            )
        part = log.write_part(entries.sort_by(_ORDER))
    del entries
    reach("before_log_compaction")
    log.replace_files(group, part)
