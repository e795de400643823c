"""`ledger/backfills`: what was begun, which chunks the log took, what was done.

Written by workers of backfills, each its own rows, and never changed. What a chunk brought stands
in the log itself, so that a row missing here costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from cdc_core.layout import BACKFILLS_SCHEMA
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, Position, TableName


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
    low: tuple[str, ...] | None
    high: tuple[str, ...] | None
    rows: int
    stale: int
    size: int
    end_lsn: Lsn
    seconds: float


class BackfillLedger:
    """The ledger of all backfills of a lake."""

    def __init__(self, root: Path) -> None:
        """Nothing is read yet."""
        self._folder = root / "ledger" / "backfills"

    def record_state(self, begun: Begun, state: BackfillState) -> None:
        """Note what became of a backfill. Raises: StagingError."""
        self._append([_describe(begun) | {"state": state.value}])

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

    def read_states(self) -> dict[str, tuple[Begun, BackfillState]]:
        """The newest backfill of each table, by its quoted name. Raises: StagingError."""
        with staging_errors("read ledger/backfills"):
            if not DeltaTable.is_deltatable(str(self._folder)):
                return {}
            ledger = DeltaTable(self._folder).to_pyarrow_dataset()
            table = ledger.to_table(filter=ds.field("chunk").is_null())
        rows = sorted(table.to_pylist(), key=lambda row: row["at"])
        return {
            row["table"]: (
                Begun(
                    row["backfill_id"],
                    TableName.parse(row["table"]),
                    Position(row["epoch"], Lsn(row["start_lsn"]), row["start_seq"]),
                ),
                BackfillState(row["state"]),
            )
            for row in rows
        }

    def find_unfinished(self, table: TableName) -> Begun | None:
        """A table's newest backfill, if it was begun and is not done. Raises: StagingError."""
        begun, state = self.read_states().get(str(table), (None, None))
        return None if state is BackfillState.DONE else begun

    def _append(self, rows: list[dict[str, object]]) -> None:
        with staging_errors("write ledger/backfills"):
            added = pa.Table.from_pylist(rows, schema=BACKFILLS_SCHEMA)
            write_deltalake(self._folder, added, mode="append")


def _describe(begun: Begun) -> dict[str, object]:
    return {
        "backfill_id": begun.id,
        "table": str(begun.table),
        "at": datetime.now(UTC),
        "epoch": begun.start.epoch,
        "start_lsn": int(begun.start.commit_lsn),
        "start_seq": begun.start.seq,
    }
