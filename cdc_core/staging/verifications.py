"""`ledger/verifications`: what each verification of a table found, and how far tables are verified.

A large table is verified part by part. The newest verifications that together cover the whole table
count. If all of them were equal, the table is verified through the least LSN of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable

from cdc_core.comparing import Ordering, OrdinalRange, RangeSum
from cdc_core.lake_layout import VERIFICATIONS
from cdc_core.lake_storage.ledgers import append_numbered
from cdc_core.lake_storage.place import LakePlace
from cdc_core.layout import VERIFICATIONS_SCHEMA
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, TableName

EQUAL, DIFFERENT, SKIPPED = "equal", "different", "skipped"
# The columns that the state of a table is computed from.
_COLUMNS = [
    *("table", "epoch", "lsn", "number", "at", "result", "reason", "coverage", "ordering"),
    *("from_ordinal", "to_ordinal", "source_rows", "lake_rows"),
]


@dataclass(frozen=True, slots=True)
class FoundRange:
    """A range that differs. `keys` is how many of its keys differ; None if that is not known.

    `holes` is the number of the lake's rows with a missing value.
    """

    part: OrdinalRange
    source_rows: int
    lake_rows: int
    keys: int | None = None
    holes: int = 0


@dataclass(frozen=True, slots=True)
class Verified:
    """What one verification of a table found. If it skipped the table, it has a `reason`."""

    table: TableName
    epoch: int
    lsn: Lsn
    result: str
    reason: str | None = None
    coverage: float | None = None
    source: RangeSum | None = None
    lake: RangeSum | None = None
    ranges: tuple[FoundRange, ...] = ()
    healed: bool = False
    seconds: float = 0.0
    ordering: Ordering | None = None
    part: OrdinalRange = field(default=OrdinalRange())


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The state of a table by all its verifications that count.

    `lsn` and `since` are the LSN and time of the oldest of these; None if a part of the table was
    never verified, or differed when it was last verified. A rotation goes on at `next_ordinal`.
    """

    result: str
    epoch: int
    lsn: Lsn | None
    since: datetime | None
    at: datetime
    coverage: float | None
    reason: str | None
    ordering: str | None
    next_ordinal: int | None


class VerificationLedger:
    """The ledger of all verifications of a lake."""

    def __init__(self, root: LakePlace) -> None:
        """This reads nothing yet."""
        self._folder = root / VERIFICATIONS

    def record(self, found: Sequence[Verified]) -> None:
        """Add the results. Raises: StagingError."""
        now = datetime.now(UTC)
        if not found:
            return
        with staging_errors(f"write {VERIFICATIONS}"):
            rows = [_describe(one, now) for one in found]
            append_numbered(self._folder, rows, VERIFICATIONS_SCHEMA)

    def read_table_verifications(self) -> dict[str, TableVerification]:
        """The state of each table, by its quoted name. Raises: StagingError."""
        with staging_errors(f"read {VERIFICATIONS}"):
            if not DeltaTable.is_deltatable(self._folder.uri):
                return {}
            rows = DeltaTable(self._folder.uri).to_pyarrow_table(columns=_COLUMNS).to_pylist()
        by_table: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(rows, key=_order, reverse=True):
            by_table.setdefault(row["table"], []).append(row)
        return {table: find_table_verification(rows) for table, rows in by_table.items()}


def _order(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """The order of results: by epoch and LSN; at the same LSN, by the commit."""
    return row["epoch"], row["lsn"], row["number"]


def find_table_verification(rows: Sequence[dict[str, Any]]) -> TableVerification:
    """The state of a table from its rows of the ledger, newest first."""
    newest = rows[0]
    compared = [row for row in rows if row["result"] != SKIPPED]
    lsn, since = _find_oldest(compared)
    last = compared[0] if compared else newest
    return TableVerification(
        newest["result"],
        newest["epoch"],
        lsn,
        since,
        newest["at"],
        newest["coverage"],
        newest["reason"],
        last["ordering"],
        last["to_ordinal"],
    )


def _find_oldest(rows: Iterable[dict[str, Any]]) -> tuple[Lsn | None, datetime | None]:
    """The LSN and time of the oldest of the newest rows that together cover the whole table.

    None if they do not cover it, or if one of them differs. Rows of another epoch or
    with another kind of ordinal do not count, and neither do the rows before them.
    """
    missing: list[tuple[float, float]] = [(float("-inf"), float("inf"))]
    kind = None
    for row in rows:
        if kind not in {None, (row["epoch"], row["ordering"])}:
            break
        kind = row["epoch"], row["ordering"]
        low = float("-inf") if row["from_ordinal"] is None else row["from_ordinal"]
        high = float("inf") if row["to_ordinal"] is None else row["to_ordinal"]
        left = [
            piece
            for start, end in missing
            for piece in ((start, min(end, low)), (max(start, high), end))
            if piece[0] < piece[1]
        ]
        if left == missing:
            continue
        if row["result"] != EQUAL:
            break
        missing = left
        if not missing:
            return Lsn(row["lsn"]), row["at"]
    return None, None


def _describe(found: Verified, now: datetime) -> dict[str, object]:
    source, lake = found.source, found.lake
    return {
        "table": str(found.table),
        "epoch": found.epoch,
        "lsn": int(found.lsn),
        "at": now,
        "result": found.result,
        "reason": found.reason,
        "coverage": found.coverage,
        "source_rows": source and source.rows,
        "lake_rows": lake and lake.rows,
        "source_checksum": source and source.checksum,
        "lake_checksum": lake and lake.checksum,
        "ranges": [
            {
                "from": one.part.low,
                "to": one.part.high,
                "source_rows": one.source_rows,
                "lake_rows": one.lake_rows,
                "keys": one.keys,
                "holes": one.holes,
            }
            for one in found.ranges
        ],
        "healed": found.healed,
        "seconds": found.seconds,
        "ordering": found.ordering and found.ordering.value,
        "from_ordinal": found.part.low,
        "to_ordinal": found.part.high,
    }
