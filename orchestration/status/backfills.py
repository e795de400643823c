"""Backfills as `walgate status` reports them: the newest of each table."""

from __future__ import annotations

from typing import Any

from cdc_core.settings import LakeSettings
from cdc_core.staging.backfills import BackfillLedger, BackfillReport
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.table_states import INTERRUPTED, UNDER_WAY, BackfillState


def describe_backfills(lake: LakeSettings) -> list[dict[str, Any]]:
    """The newest backfill of each table, in order of name. Raises: StagingError."""
    reports = BackfillLedger(lake.root).read_newest()
    folder = ChunkFolder(lake.spool)
    return [
        _describe(table, report, is_running=folder.is_claimed(report.begun.id))
        for table, report in sorted(reports.items())
    ]


def _describe(table: str, report: BackfillReport, *, is_running: bool) -> dict[str, Any]:
    state = _find_shown_state(report.state, is_running=is_running)
    is_read = state == BackfillState.RUNNING
    rate = report.rows_per_second if is_read else _average(report)
    scope = report.begun.scope
    return {
        "id": report.begun.id,
        "table": table,
        "state": state,
        "reason": report.reason,
        "from": scope.low,
        "to": scope.high,
        "where": scope.where,
        "rows": report.rows,
        "rows_estimated": report.rows_estimated,
        "chunks": report.chunks,
        "rows_per_second": None if rate is None else round(rate, 1),
        "remaining_seconds": _estimate_remaining(report, rate) if is_read else None,
        "stale_dropped": report.stale,
    }


def _find_shown_state(recorded: BackfillState, *, is_running: bool) -> str:
    """The state that `walgate status` shows; `is_running`: a process of this host runs it."""
    if recorded in UNDER_WAY and not is_running:
        return INTERRUPTED
    return (BackfillState.RUNNING if recorded.is_running else recorded).value


def _average(report: BackfillReport) -> float | None:
    """Rows per second between the backfill's first and last row in the ledger, pauses included."""
    seconds = (report.told_at - report.begun_at).total_seconds()
    return report.rows / seconds if seconds > 0 else None


def _estimate_remaining(report: BackfillReport, rate: float | None) -> float | None:
    if not rate or not report.rows_estimated:
        return None
    return round(max(0, report.rows_estimated - report.rows) / rate, 1)
