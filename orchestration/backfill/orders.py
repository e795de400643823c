"""Pauses, resumes and cancels backfills of other processes by orders in `ledger/backfills`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cdc_core.settings import LakeSettings
from cdc_core.staging.backfills import BackfillLedger, BackfillReport
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.table_states import BackfillState, require_move
from cdc_core.vocabulary import TableName


class Order(StrEnum):
    """What a person can order a backfill to do."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


_STATES = {
    Order.PAUSE: BackfillState.PAUSED,
    Order.RESUME: BackfillState.RESUMED,
    Order.CANCEL: BackfillState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The result of an order: the state of the backfill, and a note for the person."""

    table: TableName
    state: BackfillState
    note: str | None = None


def give_order(
    lake: LakeSettings, order: Order, tables: Sequence[TableName] | None
) -> list[OrderResult]:
    """Give an order to the backfills of some tables, or of all, that are not done or cancelled.

    Returns a result for each of these backfills, so none for a table without one.
    Raises: StagingError.
    """
    ledger, folder = BackfillLedger(lake.root), ChunkFolder(lake.spool)
    reports = ledger.read_all()
    # A run continues only the newest backfill of the same part of a table.
    newest = {(report.begun.table, report.begun.scope): report for report in reports}
    given = []
    for report in reports:
        begun = report.begun
        if report.is_over or (tables is not None and begun.table not in tables):
            continue
        is_running = folder.is_claimed(begun.id)
        if report is not newest[begun.table, begun.scope] and not is_running:
            continue
        state = _find_state(report, order)
        if state is not report.state:
            require_move(report.state, state)
            ledger.record_state(begun, state)
        given.append(
            OrderResult(begun.table, state, _explain(begun.table, state, is_running=is_running))
        )
    return given


def _find_state(report: BackfillReport, order: Order) -> BackfillState:
    if order is Order.RESUME and report.state is not BackfillState.PAUSED:
        return report.state
    return _STATES[order]


def _explain(table: TableName, state: BackfillState, *, is_running: bool) -> str | None:
    again = f"`walgate backfill '{table}'` resumes it"
    if state is BackfillState.CANCELLED:
        return f"{again}, and with --anew begins it again"
    return None if is_running else f"no process of this host runs it; {again}"
