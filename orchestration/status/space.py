"""What `walgate status` says of the lake's maintenance: space, what can be read, problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cdc_core.settings import Settings
from cdc_core.source.problems import Severity
from cdc_core.staging.maintenance import MaintenanceLedger, MaintenanceReport
from cdc_core.vocabulary import format_time
from orchestration.maintenance.maintenance import find_late
from spark_jobs.lake.lake import Lake, open_table
from spark_jobs.lake.ledger import find_oldest_bound


@dataclass(frozen=True, slots=True)
class Space:
    """The newest maintenance, the oldest LSN that can be read, and why maintenance is late."""

    report: MaintenanceReport | None = None
    oldest_lsn: str | None = None
    late: str | None = None


def read_space(settings: Settings, lake: Lake) -> Space:
    """Read what the last maintenance found. Raises: StagingError, DeltaError."""
    report = MaintenanceLedger(settings.lake.root).read_newest()
    oldest, epochs = find_oldest_bound(lake), open_table(lake.epochs)
    if epochs is None or oldest is None:
        return Space(report)
    started = epochs.to_pyarrow_table(columns=["started_at"]).column(0).to_pylist()
    late = find_late(report, settings, now=datetime.now(UTC), began=min(started))
    return Space(report, str(oldest.lsn), late)


def describe_space(space: Space) -> dict[str, Any]:
    """The maintenance part of the answer."""
    report = space.report
    if report is None:
        return {"at": None, "oldest_lsn": space.oldest_lsn, "bytes": None, "files": None}
    return {
        "at": format_time(report.at, "seconds"),
        "oldest_lsn": space.oldest_lsn,
        "bytes": report.needed_bytes + report.young_bytes + report.log_bytes,
        "files": report.files,
    }


def list_space_problems(space: Space) -> Iterator[tuple[Severity, str, str, str]]:
    """List severity, code, text and fix of each problem."""
    if space.late is not None:
        fix = "run `walgate maintain`, or start the schedule maintain_lake"
        yield Severity.WARNING, "maintenance_late", space.late, fix
    for problem in () if space.report is None else space.report.problems:
        fix = "see docs/operating.md, Maintenance"
        yield Severity.WARNING, "space", problem, fix
