"""`ledger/backfills`: all backfills, their states, orders to them, and chunks that the log took.

Workers add rows, and so does each process that pauses, resumes or cancels a backfill. No row is
ever changed. The log itself has the rows of a chunk, so a missing row of this ledger costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cdc_core.lake_layout import BACKFILLS
from cdc_core.lake_storage.delta_tables import is_delta, open_delta
from cdc_core.lake_storage.ledgers import append_numbered
from cdc_core.lake_storage.place import LakePlace
from cdc_core.layout import BACKFILLS_SCHEMA
from cdc_core.spooled import WHOLE, Key, Scope
from cdc_core.staging.tables import staging_errors
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Lsn, Position, TableName

_REPORTED = [
    *("backfill_id", "table", "state", "at", "number", "epoch", "start_lsn", "start_seq", "chunk"),
    *("rows", "stale_dropped", "from_key", "to_key", "condition", "reason"),
]
# The rate is of the last minute that had chunks.
_RECENT = timedelta(seconds=60)
# The state in the row of a chunk. It is no state of a backfill.
_STAGED = "staged"


@dataclass(frozen=True, slots=True)
class Begun:
    """A backfill and its start position: from there on, the log has all changes of its table."""

    id: str
    table: TableName
    start: Position
    scope: Scope = WHOLE


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk that the log has taken, and the keys that bound it; None means no bound.

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
    """How far a backfill has come.

    `begun_at` and `told_at` are the times of its first and its newest row in the ledger. `recent`
    has the times and row counts of the newest chunks. `reason` is why it is held or was stopped.
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
        """Whether the backfill is done or cancelled."""
        return self.state in {BackfillState.DONE, BackfillState.CANCELLED}

    @property
    def rows_per_second(self) -> float | None:
        """The rate of the recent chunks; None for fewer than two chunks."""
        if len(self.recent) < 2:  # noqa: PLR2004 - A rate needs two times.
            return None
        (first, rows), (last, _) = self.recent[0], self.recent[-1]
        seconds = (last - first).total_seconds()
        return sum(r for _, r in self.recent[1:]) / seconds if seconds > 0 else float(rows)


class BackfillLedger:
    """The ledger of all backfills of a lake."""

    def __init__(self, root: LakePlace) -> None:
        """This reads nothing yet."""
        self._folder = root / BACKFILLS

    def record_begun(self, begun: Begun, rows_estimated: int) -> None:
        """Record that a backfill has begun, with its estimated rows. Raises: StagingError."""
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
        """Record a new state of a backfill, or an order to it.

        `swept` is the end LSN of the sweep of a whole table: from there on, the log lacks nothing
        that the source had. Raises: StagingError.
        """
        staged_lsn = None if swept is None else int(swept)
        told = {"state": state.value, "staged_lsn": staged_lsn, "reason": reason}
        self._append([_describe(begun) | told])

    def record_chunks(self, begun: Begun, chunks: Sequence[StagedChunk]) -> None:
        """Record chunks that the log has taken. Raises: StagingError."""
        self._append(
            [
                _describe(begun)
                | {
                    "state": _STAGED,
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
        """All backfills, in the order in which they began. Raises: StagingError."""
        with staging_errors(f"read {BACKFILLS}"):
            if not is_delta(self._folder):
                return []
            rows = open_delta(self._folder).to_pyarrow_table(columns=_REPORTED).to_pylist()
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
        """The numbers of a backfill's chunks that the ledger has. Raises: StagingError."""
        with staging_errors(f"read {BACKFILLS}"):
            is_own = [("backfill_id", "=", begun.id), ("state", "=", _STAGED)]
            rows = open_delta(self._folder).to_pyarrow_table(columns=["chunk"], filters=is_own)
        return set(rows.column("chunk").to_pylist())

    def _append(self, rows: list[dict[str, object]]) -> None:
        with staging_errors(f"write {BACKFILLS}"):
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
        # A worker may record a state before it has seen that a person paused or cancelled it.
        if report.state.is_lasting and state not in report.state.next_states:
            return report
        # The time of a pause does not count in the rate.
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
