"""Says which tables have all rows of the source, and from which bound on.

A table is complete from the end LSN of the sweep of a whole backfill. Each row that the source had
at that LSN was either read by a chunk, or has changed since the backfill began. The ledger
`ledger/backfills` has the start and the end LSN. After a request for a whole backfill (because the
slot was lost, say), only a backfill that began at or above the request's bound counts. All other
tables may lack rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.table_states import UNDER_WAY, BackfillState, TableState
from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound, Lake, open_table
from spark_jobs.lake.ledger import Request, StateRecord, read_requests

NEVER = "no backfill has read the whole table: rows older than the slot may be missing"
FIX = "nothing under Dagster, which backfills it by itself; otherwise run `walgate backfill`"
_COLUMNS = ["table", "chunk", "state", "number", "epoch", "start_lsn", "staged_lsn"]


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A table that may lack rows: `queued` or `backfilling`, and why it needs a backfill.

    If `is_read`, the log already has all rows, and the table only waits for a merge. If `since` is
    not None, only a backfill that begins at or above it helps.
    """

    state: TableState
    reason: str
    is_read: bool = False
    since: Bound | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CompletedBackfill:
    """A finished backfill of a whole table: where it began, and the end LSN of its sweep."""

    start: Bound
    through: Bound


@dataclass(frozen=True, slots=True)
class Completeness:
    """What the ledgers say about whole backfills, by quoted table name.

    `under_way` goes by the last recorded state of any backfill of a table, also of a range.
    """

    done: dict[str, list[CompletedBackfill]] = field(default_factory=dict)
    under_way: frozenset[str] = frozenset()
    requests: tuple[Request, ...] = ()

    def find_incomplete(self, table: str, at: Bound | None = None) -> Incomplete | None:
        """Find why a table may lack rows; None if it has all rows.

        If `at` is not None, only requests and finished backfills up to this bound count.
        """
        asked = [r for r in self.requests if r.table == table and (at is None or r.since <= at)]
        request = max(asked, key=lambda request: request.since, default=None)
        since = None if request is None else request.since
        for whole in self.done.get(table, ()):
            is_there = at is None or whole.through <= at
            if is_there and (since is None or whole.start >= since):
                return None
        state = TableState.BACKFILLING if table in self.under_way else TableState.QUEUED
        return Incomplete(state, NEVER if request is None else request.reason, since=since)

    def find_backfill_need(
        self, table: str, state: StateRecord | None = None, cut: Bound | None = None
    ) -> Incomplete | None:
        """Find why a table needs a whole backfill; None if it needs none.

        `state` is what merges last recorded about the table, `cut` the bound of the newest cut. A
        table whose halt a backfill can cure needs one until a merge has ended the halt. If a
        backfill ended above the cut, no merge has seen it yet: `is_read` is then true.
        """
        if state is None or state.state is not TableState.HALTED:
            return self.find_incomplete(table)
        if not state.curable:
            return None
        reason, newest = state.reason or "", self.find_newest(table)
        is_unseen = newest is not None and (cut is None or cut < newest.through)
        if is_unseen or table in self.under_way:
            return Incomplete(TableState.BACKFILLING, reason, is_read=is_unseen, since=state.since)
        return Incomplete(TableState.QUEUED, reason, since=state.since)

    def derive_state(
        self, table: str, state: StateRecord | None = None, cut: Bound | None = None
    ) -> StateRecord:
        """Return the state of a table, from its need of a backfill and what merges recorded."""
        need = self.find_backfill_need(table, state, cut)
        if need is None:
            return state or StateRecord(table, TableState.STREAMING)
        fix = FIX if state is None else state.fix or FIX
        return StateRecord(table, need.state, need.reason, fix)

    def find_newest(self, table: str) -> CompletedBackfill | None:
        """Find the finished whole backfill of a table with the highest end LSN; None if none."""
        return max(self.done.get(table, ()), key=lambda whole: whole.through, default=None)

    def list_incomplete(
        self, tables: Iterable[str], at: Bound | None = None
    ) -> dict[str, Incomplete]:
        """Find, of some tables, those that may lack rows, as `find_incomplete` does."""
        found = {table: self.find_incomplete(table, at) for table in tables}
        return {table: incomplete for table, incomplete in found.items() if incomplete is not None}


def read_completeness(lake: Lake) -> Completeness:
    """Read the requests and the finished and running backfills from the ledgers."""
    requests = tuple(read_requests(lake))
    folder = lake.backfills
    ledger = open_table(folder)
    if ledger is None:
        return Completeness(requests=requests)
    done: dict[str, list[CompletedBackfill]] = defaultdict(list)
    states: dict[str, str] = {}
    for row in sorted(_read_rows(folder, ledger), key=lambda row: row["number"]):
        states[row["table"]] = row["state"]
        # The backfill of a range has no sweep of the whole table: its `staged_lsn` is None.
        if row["state"] == BackfillState.DONE and row["staged_lsn"] is not None:
            start = Bound(row["epoch"], Lsn(row["start_lsn"]))
            done[row["table"]].append(
                CompletedBackfill(start, Bound(row["epoch"], Lsn(row["staged_lsn"])))
            )
    under_way = frozenset(table for table, state in states.items() if state in UNDER_WAY)
    return Completeness(dict(done), under_way, requests)


def _read_rows(folder: LakePlace, ledger: DeltaTable) -> Iterator[dict[str, Any]]:
    """Read the rows about backfills, without opening files that have only rows about chunks."""
    for file in pa.table(ledger.get_add_actions(flatten=True)).to_pylist():
        if file.get("null_count.chunk") != 0:
            with open_input(folder / file["path"]) as source:
                rows = pq.read_table(source, columns=_COLUMNS).to_pylist()
            yield from (row for row in rows if row["chunk"] is None)
