"""`ledger/backfills`: what was begun, which chunks the log took, what was done.

Written by workers of backfills, each its own rows, and never changed. What a chunk brought stands
in the log itself, so that a row missing here costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from cdc_core.layout import BACKFILLS_SCHEMA
from cdc_core.spooled import Key
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, Position, TableName

_REPORTED = [
    *("backfill_id", "table", "state", "at", "epoch", "start_lsn", "start_seq", "chunk"),
    *("rows", "stale_dropped"),
]


class BackfillState(StrEnum):
    """What became of a backfill; a chunk is `staged`."""

    BEGUN = "begun"
    STAGED = "staged"
    STOPPED = "stopped"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Begun:
    """A backfill, and the position from which on the log has all changes of its table."""

    id: str
    table: TableName
    start: Position


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk that the log has taken, between two keys; None where there is no bound."""

    number: int
    low: Key | None
    high: Key | None
    rows: int
    stale: int
    size: int
    end_lsn: Lsn
    seconds: float


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """How far a backfill has come; times are those of its first and its newest row."""

    begun: Begun
    state: BackfillState
    begun_at: datetime
    told_at: datetime
    rows_estimated: int | None
    chunks: int = 0
    rows: int = 0
    stale: int = 0


class BackfillLedger:
    """The ledger of all backfills of a lake."""

    def __init__(self, root: Path) -> None:
        """Nothing is read yet."""
        self._folder = root / "ledger" / "backfills"

    def record_begun(self, begun: Begun, rows_estimated: int) -> None:
        """Note that a backfill of a table of about so many rows has begun. Raises: StagingError."""
        row = {"state": BackfillState.BEGUN.value, "rows": rows_estimated}
        self._append([_describe(begun) | row])

    def record_state(self, begun: Begun, state: BackfillState, *, swept: Lsn | None = None) -> None:
        """Note what became of a backfill; `swept` is the end LSN of the sweep of a whole table.

        From there on nothing is missing that the source had. Raises: StagingError.
        """
        row = {"state": state.value, "staged_lsn": None if swept is None else int(swept)}
        self._append([_describe(begun) | row])

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

    def read_newest(self) -> dict[str, BackfillReport]:
        """The newest backfill of each table, by its quoted name. Raises: StagingError."""
        with staging_errors("read ledger/backfills"):
            if not DeltaTable.is_deltatable(str(self._folder)):
                return {}
            rows = DeltaTable(self._folder).to_pyarrow_table(columns=_REPORTED).to_pylist()
        newest: dict[str, BackfillReport] = {}
        for row in sorted(rows, key=lambda row: row["at"]):
            table, known = row["table"], newest.get(row["table"])
            if row["chunk"] is None and row["state"] == BackfillState.BEGUN:
                newest[table] = _open_report(row)
            elif known is not None and known.begun.id == row["backfill_id"]:
                newest[table] = _add_row(known, row)
        return newest

    def find_unfinished(self, table: TableName) -> Begun | None:
        """A table's newest backfill, if it was begun and is not done. Raises: StagingError."""
        report = self.read_newest().get(str(table))
        return None if report is None or report.state is BackfillState.DONE else report.begun

    def _append(self, rows: list[dict[str, object]]) -> None:
        with staging_errors("write ledger/backfills"):
            added = pa.Table.from_pylist(rows, schema=BACKFILLS_SCHEMA)
            write_deltalake(self._folder, added, mode="append")


def _open_report(row: dict[str, Any]) -> BackfillReport:
    start = Position(row["epoch"], Lsn(row["start_lsn"]), row["start_seq"])
    begun = Begun(row["backfill_id"], TableName.parse(row["table"]), start)
    return BackfillReport(begun, BackfillState.BEGUN, row["at"], row["at"], row["rows"])


def _add_row(report: BackfillReport, row: dict[str, Any]) -> BackfillReport:
    if row["chunk"] is None:
        return replace(report, state=BackfillState(row["state"]), told_at=row["at"])
    return replace(
        report,
        told_at=row["at"],
        chunks=report.chunks + 1,
        rows=report.rows + row["rows"],
        stale=report.stale + row["stale_dropped"],
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
