"""Pause, resume and cancel backfills of other processes: orders in `ledger/backfills`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cdc_core.settings import LakeSettings
from cdc_core.staging.backfills import BackfillLedger, BackfillReport, BackfillState
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.vocabulary import TableName


class Order(StrEnum):
    """What can be asked of a backfill."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


_STATES = {
    Order.PAUSE: BackfillState.PAUSED,
    Order.RESUME: BackfillState.RESUMED,
    Order.CANCEL: BackfillState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Given:
    """What became of an order: the state that its backfill is in, and what there is to know."""

    table: TableName
    state: BackfillState
    note: str | None = None


def give_order(lake: LakeSettings, order: Order, tables: Sequence[TableName] | None) -> list[Given]:
    """Ask the unfinished backfills of some tables, or of all, to do something.

    Give what it led to, a line for each; none for a table that has no unfinished backfill.
    Raises: StagingError.
    """
    ledger, folder = BackfillLedger(lake.root), ChunkFolder(lake.spool)
    reports = ledger.read_all()
    # Of one part of a table the newest alone is ever gone on with.
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
            ledger.record_state(begun, state)
        given.append(Given(begun.table, state, _explain(begun.table, state, is_running=is_running)))
    return given


def _find_state(report: BackfillReport, order: Order) -> BackfillState:
    if order is Order.RESUME and report.state is not BackfillState.PAUSED:
        return report.state
    return _STATES[order]


def _explain(table: TableName, state: BackfillState, *, is_running: bool) -> str | None:
    again = f"`walgate backfill '{table}'` goes on with it"
    if state is BackfillState.CANCELLED:
        return f"{again}, with --anew it begins again"
    return None if is_running else f"no process of this host runs it; {again}"
