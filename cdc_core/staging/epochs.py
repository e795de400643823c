"""`staging/epochs`: the incarnations of the slot, and how far the log has come in the newest.

Read here without making or changing anything: for who only looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from cdc_core.staging.tables import read_rows, staging_errors
from cdc_core.vocabulary import Lsn

# No slot was ever made there.
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
        """The app transaction whose version is the staged LSN."""
        return f"walgate:{self.system_id}:{self.epoch}"

    @property
    def is_pending(self) -> bool:
        """Whether a recovery has begun it and not yet come to its slot: nothing may be staged."""
        return self.first_lsn == _NOT_KNOWN


def choose_newest(rows: Iterable[dict[str, Any]]) -> Epoch | None:
    """The newest of the rows of `staging/epochs`: of one epoch, the one that came last."""
    ordered = sorted(rows, key=lambda row: (row["epoch"], row["first_lsn"], row["timeline"]))
    if not ordered:
        return None
    return Epoch(**{**ordered[-1], "first_lsn": Lsn(ordered[-1]["first_lsn"])})


def read_newest_epoch(root: Path) -> Epoch | None:
    """The newest epoch of a lake; None where it has no log. Raises: StagingError."""
    folder = root / "staging" / "epochs"
    with staging_errors("read the log's epochs"):
        if not DeltaTable.is_deltatable(str(folder)):
            return None
        return choose_newest(read_rows(DeltaTable(folder)))


def read_staged_lsn(root: Path, epoch: Epoch) -> Lsn:
    """The staged LSN of an epoch. Raises: StagingError."""
    folder = root / "staging" / "changes"
    with staging_errors("read the staged LSN"):
        if not DeltaTable.is_deltatable(str(folder)):
            return epoch.first_lsn
        return find_staged(DeltaTable(folder), epoch)


def find_staged(changes: DeltaTable, epoch: Epoch) -> Lsn:
    """The staged LSN of an epoch, by the log at a version."""
    version = changes.transaction_version(epoch.application)
    return epoch.first_lsn if version is None else Lsn(version)
