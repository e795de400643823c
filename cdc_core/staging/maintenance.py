"""`ledger/maintenance`: what each maintenance of the lake found and did.

Capture reads from it how far it may trim the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from cdc_core.lake_layout import MAINTENANCE
from cdc_core.lake_storage.ledgers import (
    append_numbered,
    drop_rows,
    find_newest,
    rewrite_newest_commit,
)
from cdc_core.lake_storage.place import LakePlace
from cdc_core.layout import MAINTENANCE_SCHEMA
from cdc_core.staging.log_files import LogPoint
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What one maintenance found and did.

    `floor` is how far the log may be trimmed, and `holder` names what keeps it from being higher.
    Sizes are in bytes: `needed_bytes` of the files of tables and ledgers that cuts or readers need,
    `young_bytes` of other files that are too young to remove, `log_bytes` of the log. `problems`
    has a line for each thing that a person should look at.
    """

    at: datetime
    seconds: float
    cuts: int
    dropped_cuts: int
    oldest_cut: LogPoint | None
    oldest_cut_at: datetime | None
    floor: LogPoint | None
    holder: str | None
    files: int
    needed_bytes: int
    log_bytes: int
    young_bytes: int
    removed_files: int
    removed_bytes: int
    compacted_tables: int
    problems: tuple[str, ...]


class MaintenanceLedger:
    """The ledger of all maintenances of a lake."""

    def __init__(self, root: LakePlace) -> None:
        """This reads nothing yet."""
        self._folder = root / MAINTENANCE

    def record(self, report: MaintenanceReport) -> None:
        """Add a report. Raises: StagingError."""
        row = {
            name: getattr(report, name)
            for name in MAINTENANCE_SCHEMA.names
            if hasattr(report, name)
        }
        row |= _describe("oldest_cut", report.oldest_cut) | _describe("floor", report.floor)
        row["problems"] = [*report.problems]
        with staging_errors(f"write {MAINTENANCE}"):
            rewrite_newest_commit(self._folder)
            append_numbered(self._folder, [row], MAINTENANCE_SCHEMA)

    def drop_old(self, before: datetime) -> None:
        """Drop the reports from before a time, but not the newest of them. Raises: StagingError."""
        with staging_errors(f"write {MAINTENANCE}"):
            drop_rows(self._folder, MAINTENANCE_SCHEMA, partial(_choose_kept, before=before))

    def read_newest(self, *, before: datetime | None = None) -> MaintenanceReport | None:
        """The newest report, or the newest of those before a time; None if there is none.

        Raises: StagingError.
        """

        def is_wanted(row: Mapping[str, Any]) -> bool:
            return before is None or row["at"] < before

        with staging_errors(f"read {MAINTENANCE}"):
            row = find_newest(self._folder, MAINTENANCE_SCHEMA, is_wanted)
        if row is None:
            return None
        plain = {
            name: row[name]
            for name in MaintenanceReport.__dataclass_fields__
            if name in row and name != "problems"
        }
        return MaintenanceReport(
            **plain,
            oldest_cut=_point(row, "oldest_cut"),
            floor=_point(row, "floor"),
            problems=tuple(row["problems"]),
        )


def _choose_kept(rows: Sequence[dict[str, Any]], *, before: datetime) -> list[dict[str, Any]]:
    # The newest old report stays: a maintenance compares its floor with an older one.
    old = max((row["number"] for row in rows if row["at"] < before), default=None)
    return [row for row in rows if row["at"] >= before or row["number"] == old]


def _describe(name: str, point: LogPoint | None) -> dict[str, int | None]:
    return {
        f"{name}_epoch": None if point is None else point.epoch,
        f"{name}_lsn": None if point is None else int(point.lsn),
    }


def _point(row: dict[str, Any], name: str) -> LogPoint | None:
    epoch, lsn = row[f"{name}_epoch"], row[f"{name}_lsn"]
    return None if epoch is None else LogPoint(epoch, Lsn(lsn))
