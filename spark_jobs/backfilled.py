"""Which tables a backfill has made whole, and from which LSN on; all others may lack rows.

A table's backfill is whole from the end LSN of its sweep on: what the source had there was read by
a chunk, or changed since the backfill began. Both ends stand in `ledger/backfills`. Where more was
asked for since (a slot that was lost, say), only a backfill that began later counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.vocabulary import Lsn
from spark_jobs.lake import Bound, Lake, open_table
from spark_jobs.ledger import HALTED, STREAMING, Request, TableState, read_requests

NEVER = "it was never read whole: rows older than the slot may be missing"
FIX = (
    "none is needed under Dagster, where it is read by itself; from a shell run `walgate backfill`"
)
_COLUMNS = ["table", "chunk", "state", "number", "epoch", "start_lsn", "staged_lsn"]
_DONE = "done"
_UNDER_WAY = frozenset({"begun", "running", "resumed", "held"})


class Lacking(StrEnum):
    """Why a table is not whole: its backfill waits, or runs."""

    QUEUED = "queued"
    BACKFILLING = "backfilling"


@dataclass(frozen=True, slots=True)
class Lack:
    """That a table may lack rows, what is being done, and why it is needed.

    Where the log has all of them already, a merge is all that is waited for. A backfill that began
    below `since` is of no use.
    """

    state: Lacking
    reason: str
    is_read: bool = False
    since: Bound | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole backfill that was done: where it began, and the end LSN of its sweep."""

    start: Bound
    through: Bound


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What the ledgers tell of whole backfills, by quoted table name."""

    done: dict[str, list[Whole]] = field(default_factory=dict)
    under_way: frozenset[str] = frozenset()
    requests: tuple[Request, ...] = ()

    def find_lack(self, table: str, at: Bound | None = None) -> Lack | None:
        """Why a table may lack rows when it is read at a bound, or of all; None if it is whole."""
        asked = [r for r in self.requests if r.table == table and (at is None or r.since <= at)]
        request = max(asked, key=lambda request: request.since, default=None)
        since = None if request is None else request.since
        for whole in self.done.get(table, ()):
            is_there = at is None or whole.through <= at
            if is_there and (since is None or whole.start >= since):
                return None
        state = Lacking.BACKFILLING if table in self.under_way else Lacking.QUEUED
        return Lack(state, NEVER if request is None else request.reason, since=since)

    def find_need(
        self, table: str, state: TableState | None = None, cut: Bound | None = None
    ) -> Lack | None:
        """What a table must be read whole for, as far as a merge up to the newest cut has seen.

        A halt that a backfill cures asks for one until a merge has found one that does.
        """
        if state is None or state.state != HALTED:
            return self.find_lack(table)
        if not state.curable:
            return None
        reason, newest = state.reason or "", self.find_newest(table)
        is_unseen = newest is not None and (cut is None or cut < newest.through)
        if is_unseen or table in self.under_way:
            return Lack(Lacking.BACKFILLING, reason, is_read=is_unseen, since=state.since)
        return Lack(Lacking.QUEUED, reason, since=state.since)

    def tell_state(
        self, table: str, state: TableState | None = None, cut: Bound | None = None
    ) -> TableState:
        """The state of a table, given what merges last recorded of it."""
        need = self.find_need(table, state, cut)
        if need is None:
            return state or TableState(table, STREAMING)
        fix = FIX if state is None else state.fix or FIX
        return TableState(table, need.state.value, need.reason, fix)

    def find_newest(self, table: str) -> Whole | None:
        """The last whole backfill of a table that was done."""
        return max(self.done.get(table, ()), key=lambda whole: whole.through, default=None)

    def list_lacking(self, tables: Iterable[str], at: Bound | None = None) -> dict[str, Lack]:
        """Those of some tables that may lack rows at a bound."""
        found = {table: self.find_lack(table, at) for table in tables}
        return {table: lack for table, lack in found.items() if lack is not None}


def read_backfilled(lake: Lake) -> Backfilled:
    """Read what the ledgers tell."""
    requests = tuple(read_requests(lake))
    folder = lake.root / "ledger" / "backfills"
    ledger = open_table(folder)
    if ledger is None:
        return Backfilled(requests=requests)
    done: dict[str, list[Whole]] = defaultdict(list)
    states: dict[str, str] = {}
    for row in sorted(_read_rows(folder, ledger), key=lambda row: row["number"]):
        states[row["table"]] = row["state"]
        # One of a range has no sweep of the whole table to tell of.
        if row["state"] == _DONE and row["staged_lsn"] is not None:
            start = Bound(row["epoch"], Lsn(row["start_lsn"]))
            done[row["table"]].append(Whole(start, Bound(row["epoch"], Lsn(row["staged_lsn"]))))
    under_way = frozenset(table for table, state in states.items() if state in _UNDER_WAY)
    return Backfilled(dict(done), under_way, requests)


def _read_rows(folder: Path, ledger: DeltaTable) -> Iterator[dict[str, Any]]:
    """The rows that tell of whole backfills; of a chunk each has a file, and none is opened."""
    for file in pa.table(ledger.get_add_actions(flatten=True)).to_pylist():
        if file.get("null_count.chunk") != 0:
            rows = pq.read_table(folder / file["path"], columns=_COLUMNS).to_pylist()
            yield from (row for row in rows if row["chunk"] is None)
