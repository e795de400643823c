"""`ledger/verifications`: what each verification of a table found, and how far tables are verified.

A large table is verified part by part. The newest verifications that together cover the whole table
count. If all of them were equal, the table is verified through the least LSN of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cdc_core.comparing import Ordering, OrdinalRange, RangeSum
from cdc_core.lake_layout import VERIFICATIONS
from cdc_core.lake_storage.delta_tables import is_delta, open_delta
from cdc_core.lake_storage.ledgers import append_numbered, drop_rows, rewrite_newest_commit
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
            rewrite_newest_commit(self._folder)
            append_numbered(self._folder, rows, VERIFICATIONS_SCHEMA)

    def drop_old(self, before: datetime) -> None:
        """Drop the results from before a time that decide nothing. Raises: StagingError."""
        with staging_errors(f"write {VERIFICATIONS}"):
            drop_rows(self._folder, VERIFICATIONS_SCHEMA, partial(choose_kept_rows, before=before))

    def read_table_verifications(self) -> dict[str, TableVerification]:
        """The state of each table, by its quoted name. Raises: StagingError."""
        with staging_errors(f"read {VERIFICATIONS}"):
            if not is_delta(self._folder):
                return {}
            rows = open_delta(self._folder).to_pyarrow_table(columns=_COLUMNS).to_pylist()
        return {table: find_table_verification(own) for table, own in group_by_table(rows).items()}


def group_by_table(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table, newest first: by epoch and LSN; at the same LSN, by the commit."""
    by_table: dict[str, list[dict[str, Any]]] = {}
    newest_first = sorted(
        rows, key=lambda row: (row["epoch"], row["lsn"], row["number"]), reverse=True
    )
    for row in newest_first:
        by_table.setdefault(row["table"], []).append(row)
    return by_table


def find_table_verification(rows: Sequence[dict[str, Any]]) -> TableVerification:
    """The state of a table from its rows of the ledger, newest first."""
    newest = rows[0]
    covering = _find_covering(rows)
    oldest = covering.rows[-1] if covering.is_equal else None
    last = next(_list_compared(rows), newest)
    return TableVerification(
        newest["result"],
        newest["epoch"],
        None if oldest is None else Lsn(oldest["lsn"]),
        None if oldest is None else oldest["at"],
        newest["at"],
        newest["coverage"],
        newest["reason"],
        last["ordering"],
        last["to_ordinal"],
    )


def choose_kept_rows(rows: Sequence[dict[str, Any]], *, before: datetime) -> list[dict[str, Any]]:
    """Choose all rows but those from before a time on which no table's state depends.

    The rows that are left out cannot matter later either, when the ledger has newer rows.
    """
    kept: list[dict[str, Any]] = []
    for own in group_by_table(rows).values():
        # A row that ends the search is one of these. Without it, older ones would count.
        deciding = [own[0], *_find_covering(own).rows]
        kept += [row for row in own if row in deciding or row["at"] >= before]
    return kept


@dataclass(frozen=True, slots=True)
class _Covering:
    """The rows, newest first, of which each covers a part of a table that no newer row covers.

    The last one may be a row that only ended the search. `is_equal` if they cover the whole table,
    and each found it equal.
    """

    rows: list[dict[str, Any]]
    is_equal: bool


def _list_compared(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (row for row in rows if row["result"] != SKIPPED)


def _find_covering(rows: Iterable[dict[str, Any]]) -> _Covering:
    """Find the newest rows that together cover a table.

    A row of another epoch or with another kind of ordinal ends the search.
    """
    missing: list[tuple[float, float]] = [(float("-inf"), float("inf"))]
    kind = None
    covering: list[dict[str, Any]] = []
    for row in _list_compared(rows):
        if kind not in {None, (row["epoch"], row["ordering"])}:
            return _Covering([*covering, row], is_equal=False)
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
        covering.append(row)
        missing = left
        if not missing:
            return _Covering(covering, all(row["result"] == EQUAL for row in covering))
    return _Covering(covering, is_equal=False)


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
