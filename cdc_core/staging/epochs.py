"""`staging/epochs`: the incarnations of the slot, and how far the log has come in the newest.

This module only reads; it creates and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltalake import DeltaTable

from cdc_core.errors import Retry, StagingError
from cdc_core.lake_layout import CHANGES, DELTA_LOG, EPOCHS
from cdc_core.lake_storage.delta_tables import is_delta, open_delta
from cdc_core.lake_storage.durability import locate_commit
from cdc_core.lake_storage.place import LakePlace
from cdc_core.staging.tables import read_rows, staging_errors
from cdc_core.vocabulary import Lsn

# The `first_lsn` of an epoch without a slot. No slot ever begins there.
_NOT_KNOWN = Lsn(0)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One incarnation of the slot, as `staging/epochs` has it."""

    epoch: int
    system_id: str
    timeline: int
    slot: str
    publication: str
    first_lsn: Lsn
    started_at: datetime
    reason: str

    @property
    def application(self) -> str:
        """The app id of the Delta transaction whose version is the staged LSN."""
        return f"walgate:{self.system_id}:{self.epoch}"

    @property
    def is_pending(self) -> bool:
        """Whether the epoch, begun by a recovery, has no slot yet. Capture stages nothing then."""
        return self.first_lsn == _NOT_KNOWN


def choose_newest(rows: Iterable[dict[str, Any]]) -> Epoch | None:
    """The newest epoch in rows of `staging/epochs`; None without rows.

    If an epoch has several rows, the one with the greatest first LSN counts.
    """
    ordered = sorted(rows, key=lambda row: (row["epoch"], row["first_lsn"], row["timeline"]))
    if not ordered:
        return None
    return Epoch(**{**ordered[-1], "first_lsn": Lsn(ordered[-1]["first_lsn"])})


class EpochReader:
    """Reads the newest epoch of a lake. Opens the table again only after a commit.

    Several threads may read.
    """

    def __init__(self, root: LakePlace) -> None:
        """This reads nothing yet."""
        self._folder = root / EPOCHS
        self._log = self._folder / DELTA_LOG
        self._known: _Known | None = None

    def read(self) -> Epoch | None:
        """The newest epoch; None if the lake has no log.

        Raises: StagingError, also if the log has disappeared since the last call. A lake that is
        not mounted for a moment must not look like a lake without a log, which accepts any server.
        """
        with staging_errors("read the log's epochs"):
            known = self._known
            if known is None or not self._is_newest(known):
                found = self._open()
                if found is None and known is not None:
                    raise StagingError(
                        f"the log is gone: table {self._folder} does not exist",
                        fix="check that the lake is mounted",
                        retry=Retry.LATER,
                    )
                known = self._known = found
            return None if known is None else known.epoch

    def _open(self) -> _Known | None:
        if not is_delta(self._folder):
            return None
        # Read before the table is opened, so the next call sees what changes from here on.
        changed = self._log.read_change()
        table = open_delta(self._folder)
        epoch = choose_newest(read_rows(table))
        return _Known(epoch, changed, locate_commit(self._folder, table.version() + 1))

    def _is_newest(self, known: _Known) -> bool:
        return not known.following.exists() and self._log.read_change() == known.changed


@dataclass(frozen=True, slots=True)
class _Known:
    """The newest epoch, the last change of the log's folder, and the path of the next commit."""

    epoch: Epoch | None
    changed: tuple[int, int] | None
    following: LakePlace


def read_newest_epoch(root: LakePlace) -> Epoch | None:
    """The newest epoch of a lake; None if it has no log. Raises: StagingError."""
    return EpochReader(root).read()


def read_staged_lsn(root: LakePlace, epoch: Epoch) -> Lsn:
    """The staged LSN of an epoch. Raises: StagingError."""
    folder = root / CHANGES
    with staging_errors("read the staged LSN"):
        if not is_delta(folder):
            return epoch.first_lsn
        return find_staged(open_delta(folder), epoch)


def find_staged(changes: DeltaTable, epoch: Epoch) -> Lsn:
    """The staged LSN of an epoch, as of the version at which `changes` is open."""
    version = changes.transaction_version(epoch.application)
    return epoch.first_lsn if version is None else Lsn(version)
