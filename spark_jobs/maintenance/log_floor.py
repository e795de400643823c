"""Decides how far capture may trim the log: up to the floor.

Above the floor, the log must have every entry that a reader or a merge may still need, and
everything younger than the retention. A halted table does not hold the floor. If capture trims
changes that the table needs, the table needs a whole backfill. A halted target of entries holds it,
because no backfill brings lost entries back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_core.table_states import BackfillState
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake.lake import Bound, Lake, open_table
from spark_jobs.lake.ledger import Cut, queue_tables, read_requests

OLDEST_CUT = "the oldest cut"
RETENTION = "[lake] retention"
_COLUMNS = ["backfill_id", "table", "chunk", "state", "number", "epoch", "start_lsn", "staged_lsn"]
_OVER = frozenset({BackfillState.DONE, BackfillState.CANCELLED})


@dataclass(frozen=True, slots=True)
class Floor:
    """The bound up to which the log may be trimmed, and what keeps it from being higher."""

    bound: Bound
    holder: str


def find_floor(
    cuts: Sequence[Cut], *, aged: Bound | None, started: Iterable[tuple[str, Bound]]
) -> Floor | None:
    """Find the floor of the log; None if no cut is older than the retention. Pure.

    `cuts` are the kept cuts, oldest first; a reader's lease keeps the cut that it reads at. `aged`
    is the newest cut, kept or dropped, that is older than the retention: the log above it stays.
    `started` has the table and the start of each backfill that still runs, or whose end is not
    merged.
    """
    if not cuts or aged is None:
        return None
    held = [Floor(cuts[0].bound, OLDEST_CUT)]
    for cut in cuts:
        held += [
            Floor(bound, f"{target}, which is behind at a kept cut")
            for target, bound in cut.merged.items()
            if target not in cut.halted and not _holds_entries(target)
        ]
    # A reader of entries needs no cut. But no backfill brings back what a halted target lacks.
    held += [
        Floor(bound, f"{target}, which is behind at the newest cut")
        for target, bound in cuts[-1].merged.items()
        if _holds_entries(target)
    ]
    held += [Floor(start, f"the backfill of {table}") for table, start in started]
    held.append(Floor(aged, RETENTION))
    # If several hold one bound, `min` names the first.
    return min(held, key=lambda floor: floor.bound)


def find_unmerged_starts(lake: Lake, newest: Cut) -> list[tuple[str, Bound]]:
    """Find the backfills whose entries a merge may still need: their tables, and where they began.

    Only the newest epoch counts: after a recovery, every table is read again. If the newest cut is
    beyond the end of a backfill and the table is still halted, the backfill did not end the halt.
    It no longer holds the floor. An older backfill does not hold it once a newer one is done.
    """
    starts: list[tuple[str, Bound]] = []
    for table, rows in _read_by_table(lake).items():
        last: dict[str, dict[str, Any]] = {}
        for row in rows:
            known = last.get(row["backfill_id"])
            # A worker may record a state after a person has paused or cancelled the backfill.
            if known is None or _may_follow(BackfillState(known["state"]), row["state"]):
                last[row["backfill_id"]] = row
        open_since = 0
        for row in last.values():
            if row["state"] == BackfillState.DONE and row["staged_lsn"] is not None:
                open_since = max(open_since, row["number"])
                end = Bound(row["epoch"], Lsn(row["staged_lsn"]))
                if end > _find_seen(newest, TableName.parse(table)):
                    starts.append((table, _start_of(row)))
        starts += [
            (table, _start_of(row))
            for row in last.values()
            if row["state"] not in _OVER and row["number"] > open_since
        ]
    return [(table, start) for table, start in starts if start.epoch == newest.bound.epoch]


def queue_halted(lake: Lake, newest: Cut, floor: Bound) -> list[str]:
    """Queue a whole backfill of each halted table that lacks changes at or below the floor.

    Return their quoted names. A table that was queued since it halted is not queued again.
    """
    requests = read_requests(lake)

    def is_lost(target: str) -> bool:
        halted_at, table = newest.find_place(target).bound, str(Target.parse(target).table)
        is_queued = any(one.table == table and one.since > halted_at for one in requests)
        return halted_at < floor and not is_queued

    halted = [name for name in newest.halted if not _holds_entries(name)]
    lost = sorted({Target.parse(name).table for name in halted if is_lost(name)})
    reason = "capture may trim changes that the table has not merged since it halted"
    queue_tables(lake, lost, reason=reason, since=floor)
    return [str(table) for table in lost]


def _find_seen(newest: Cut, table: TableName) -> Bound:
    """The bound up to which every target that follows a table's rows has seen the log."""
    targets = [Target(table), Target(table, TargetKind.HISTORY)]
    return min(
        newest.bound if name in newest.halted else newest.find_place(name).bound
        for name in map(str, targets)
    )


def _holds_entries(target: str) -> bool:
    return not Target.parse(target).follows_rows


def _read_by_table(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """The rows about states of backfills, by table, oldest first."""
    ledger = open_table(lake.backfills)
    if ledger is None:
        return {}
    rows = ledger.to_pyarrow_table(columns=_COLUMNS)
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows.to_pylist(), key=lambda row: row["number"]):
        if row["chunk"] is None:
            found[row["table"]].append(row)
    return found


def _may_follow(known: BackfillState, state: str) -> bool:
    return not known.is_lasting or BackfillState(state) in known.next_states


def _start_of(row: dict[str, Any]) -> Bound:
    return Bound(row["epoch"], Lsn(row["start_lsn"]))
