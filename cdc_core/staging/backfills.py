"""`ledger/backfills`: what was begun, which chunks the log took, what was asked for, what was done.

Rows are added by workers of backfills and by who pauses, resumes or cancels one, and never changed.
The log itself has what a chunk brought, so a missing row here costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from cdc_core.layout import BACKFILLS_SCHEMA
from cdc_core.spooled import WHOLE, Key, Scope
from cdc_core.staging.ledgers import append_numbered
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, Position, TableName

_REPORTED = [
    *("backfill_id", "table", "state", "at", "number", "epoch", "start_lsn", "start_seq", "chunk"),
    *("rows", "stale_dropped", "from_key", "to_key", "condition", "reason"),
]
# The rate is that of the last minute with chunks in it.
_RECENT = timedelta(seconds=60)


class BackfillState(StrEnum):
    """What became of a backfill; a chunk is `staged`.

    `held` waits for the source or for capture, and is then `running` again; `paused` waits for a
    person to have it `resumed`, `stopped` for its next run.
    """

    BEGUN = "begun"
    STAGED = "staged"
    HELD = "held"
    RUNNING = "running"
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    DONE = "done"

    @property
    def is_running(self) -> bool:
        """Whether it goes on, if a worker lives."""
        return self in {BackfillState.BEGUN, BackfillState.RESUMED, BackfillState.RUNNING}


# What ends a lasting state. Other states that are recorded during it came too late.
_ENDED_BY = {
    BackfillState.PAUSED: {
        BackfillState.RESUMED,
        BackfillState.CANCELLED,
        BackfillState.DONE,
    },
    BackfillState.CANCELLED: {BackfillState.RESUMED, BackfillState.DONE},
    BackfillState.DONE: set(),
}


@dataclass(frozen=True, slots=True)
class Begun:
    """A backfill, and the position from which on the log has all changes of its table."""

    id: str
    table: TableName
    start: Position
    scope: Scope = WHOLE


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk that the log has taken, between two keys; None where there is no bound.

    `by` are the columns of the bounds, with their types and collations.
    """

    number: int
    by: tuple[str, ...]
    low: Key | None
    high: Key | None
    rows: int
    stale: int
    size: int
    end_lsn: Lsn
    seconds: float


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """How far a backfill has come; times are those of its first and its newest row.

    `recent` are the newest chunks' times and rows, `reason` why it is held.
    """

    begun: Begun
    state: BackfillState
    begun_at: datetime
    told_at: datetime
    rows_estimated: int | None
    chunks: int = 0
    rows: int = 0
    stale: int = 0
    reason: str | None = None
    recent: tuple[tuple[datetime, int], ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing more becomes of it by itself."""
        return self.state in {BackfillState.DONE, BackfillState.CANCELLED}

    @property
    def rows_per_second(self) -> float | None:
        """How fast it came forward at last; None before two chunks."""
        if len(self.recent) < 2:  # noqa: PLR2004 - A rate has two ends.
            return None
        (first, rows), (last, _) = self.recent[0], self.recent[-1]
        seconds = (last - first).total_seconds()
        return sum(r for _, r in self.recent[1:]) / seconds if seconds > 0 else float(rows)


class BackfillLedger:
    """The ledger of all backfills of a lake."""

    def __init__(self, root: Path) -> None:
        """Nothing is read yet."""
        self._folder = root / "ledger" / "backfills"

    def record_begun(self, begun: Begun, rows_estimated: int) -> None:
        """Note that a backfill of about so many rows has begun. Raises: StagingError."""
        told = {"state": BackfillState.BEGUN.value, "rows": rows_estimated}
        scope = begun.scope
        bounds = {"from_key": scope.low, "to_key": scope.high, "condition": scope.where}
        self._append([_describe(begun) | told | bounds])

    def record_state(
        self,
        begun: Begun,
        state: BackfillState,
        *,
        swept: Lsn | None = None,
        reason: str | None = None,
    ) -> None:
        """Note what became of a backfill, or what is asked of it.

        `swept` is the end LSN of the sweep of a whole table: from there on nothing is missing that
        the source had. Raises: StagingError.
        """
        staged_lsn = None if swept is None else int(swept)
        told = {"state": state.value, "staged_lsn": staged_lsn, "reason": reason}
        self._append([_describe(begun) | told])

    def record_chunks(self, begun: Begun, chunks: Sequence[StagedChunk]) -> None:
        """Note chunks that the log has taken. Raises: StagingError."""
        self._append(
            [
                _describe(begun)
                | {
                    "state": BackfillState.STAGED.value,
                    "chunk": chunk.number,
                    "from_key": chunk.low,
                    "to_key": chunk.high,
                    "rows": chunk.rows,
                    "bytes": chunk.size,
                    "stale_dropped": chunk.stale,
                    "staged_lsn": int(chunk.end_lsn),
                    "seconds": chunk.seconds,
                }
                for chunk in chunks
            ]
        )

    def read_all(self) -> list[BackfillReport]:
        """Every backfill, in the order in which they began. Raises: StagingError."""
        with staging_errors("read ledger/backfills"):
            if not DeltaTable.is_deltatable(str(self._folder)):
                return []
            rows = DeltaTable(self._folder).to_pyarrow_table(columns=_REPORTED).to_pylist()
        reports: dict[str, BackfillReport] = {}
        for row in sorted(rows, key=lambda row: row["number"]):
            name, known = row["backfill_id"], reports.get(row["backfill_id"])
            if row["chunk"] is None and row["state"] == BackfillState.BEGUN:
                reports[name] = _open_report(row)
            elif known is not None:
                reports[name] = _add_row(known, row)
        return list(reports.values())

    def read_newest(self) -> dict[str, BackfillReport]:
        """The newest backfill of each table, by its quoted name. Raises: StagingError."""
        return {str(report.begun.table): report for report in self.read_all()}

    def find_unfinished(self, table: TableName, scope: Scope) -> BackfillReport | None:
        """The newest backfill of a part of a table, if it is not done. Raises: StagingError."""
        own = [r for r in self.read_all() if (r.begun.table, r.begun.scope) == (table, scope)]
        return None if not own or own[-1].state is BackfillState.DONE else own[-1]

    def find_recorded(self, begun: Begun) -> set[int]:
        """The numbers of the chunks of a backfill that are on record. Raises: StagingError."""
        with staging_errors("read ledger/backfills"):
            is_own = [("backfill_id", "=", begun.id), ("state", "=", BackfillState.STAGED.value)]
            rows = DeltaTable(self._folder).to_pyarrow_table(columns=["chunk"], filters=is_own)
        return set(rows.column("chunk").to_pylist())

    def _append(self, rows: list[dict[str, object]]) -> None:
        with staging_errors("write ledger/backfills"):
            append_numbered(self._folder, rows, BACKFILLS_SCHEMA)


def _open_report(row: dict[str, Any]) -> BackfillReport:
    start = Position(row["epoch"], Lsn(row["start_lsn"]), row["start_seq"])
    low, high = (None if row[end] is None else tuple(row[end]) for end in ("from_key", "to_key"))
    scope = Scope(low, high, row["condition"])
    begun = Begun(row["backfill_id"], TableName.parse(row["table"]), start, scope)
    return BackfillReport(begun, BackfillState.BEGUN, row["at"], row["at"], row["rows"])


def _add_row(report: BackfillReport, row: dict[str, Any]) -> BackfillReport:
    at: datetime = row["at"]
    if row["chunk"] is None:
        state = BackfillState(row["state"])
        if state not in _ENDED_BY.get(report.state, {state}):
            return report
        # The rate is not that of a pause.
        return replace(report, state=state, told_at=at, reason=row["reason"], recent=())
    recent = (*report.recent, (at, row["rows"]))
    return replace(
        report,
        told_at=at,
        chunks=report.chunks + 1,
        rows=report.rows + row["rows"],
        stale=report.stale + row["stale_dropped"],
        recent=tuple(one for one in recent if timedelta(0) <= at - one[0] <= _RECENT),
    )


def _describe(begun: Begun) -> dict[str, object]:
    return {
        "backfill_id": begun.id,
        "table": str(begun.table),
        "at": datetime.now(UTC),
        "epoch": begun.start.epoch,
        "start_lsn": int(begun.start.commit_lsn),
        "start_seq": begun.start.seq,
    }
