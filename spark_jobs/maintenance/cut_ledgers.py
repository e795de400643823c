"""Drops cuts from `ledger/cuts`, and keeps a copy of each for the grace.

A reader may have found a cut just before it was dropped. So the files of its versions stay until
the grace is over, by the copy of the cut in `ledger/dropped_cuts`. The copy comes first: a crash
leaves the cut in both ledgers, and the next maintenance drops it again. The first cut that was ever
written stays in `ledger/dropped_cuts`: it shows where the first log began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa

from cdc_core.crash_points import reach
from cdc_core.errors import MergeError, Retry
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.ledgers import replace_rows
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Bound, Lake, open_table
from spark_jobs.lake.ledger import (
    CUTS_SCHEMA,
    Cut,
    append_numbered,
    describe_bound,
    describe_cut,
    rewrite_newest_commit,
)
from spark_jobs.maintenance.thinning import DatedCut, Keeping, choose_dropped

_TIME = pa.timestamp("us", tz="UTC")
DROPPED_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32()),
        pa.field("cut_lsn", pa.int64()),
        pa.field("created_at", _TIME),
        pa.field("dropped_at", _TIME),
        pa.field("tables", pa.map_(pa.string(), pa.int64())),
        pa.field("number", pa.int64()),
    ]
)
_COPIED = ("epoch", "cut_lsn", "created_at", "tables")
# A ledger with more files is written as one file. A read at a cut opens few of them, but lists all.
_MAX_FILES = 20
# A round may commit a cut between a read and a commit of this module, which then tries again.
_TRIES = 20


def read_cuts(lake: Lake) -> list[Cut]:
    """Read all cuts, oldest first. Raises: DeltaError."""
    return [describe_cut(row) for row in _read_rows(lake)]


def thin_cuts(
    lake: Lake, *, now: datetime, keeping: Keeping, leased: Collection[Bound] = ()
) -> tuple[list[Cut], int]:
    """Drop the cuts that are not kept; return the kept ones, oldest first, and how many went.

    Raises: DeltaError, MergeError if the storage refuses.
    """
    cuts, rows = open_table(lake.cuts), _read_rows(lake)
    if cuts is None:
        return [], 0
    dated = [DatedCut(describe_bound(row), row["created_at"]) for row in rows]
    dropped = choose_dropped(dated, now=now, keeping=keeping, leased=leased)
    if dropped:
        _copy_dropped(lake, [row for row in rows if describe_bound(row) in dropped], now)
        reach("after_cuts_copied")
    if dropped or len(cuts.file_uris()) > _MAX_FILES:
        _rewrite(lake.cuts, CUTS_SCHEMA, lambda row: describe_bound(row) not in dropped)
        reach("after_cuts_dropped")
    kept = [describe_cut(row) for row in rows if describe_bound(row) not in dropped]
    return kept, len(rows) - len(kept)


def forget_dropped(lake: Lake, *, now: datetime, keeping: Keeping) -> None:
    """Remove the copies of dropped cuts whose grace is over, except that of the first cut."""
    ledger = open_table(lake.dropped_cuts)
    if ledger is None:
        return
    rows = ledger.to_pyarrow_table(columns=["epoch", "cut_lsn", "dropped_at"]).to_pylist()
    first = min(map(describe_bound, rows), default=None)
    over = now - keeping.grace

    def is_kept(row: dict[str, Any]) -> bool:
        return row["dropped_at"] >= over or describe_bound(row) == first

    if len(ledger.file_uris()) > _MAX_FILES or not all(map(is_kept, rows)):
        _rewrite(lake.dropped_cuts, DROPPED_SCHEMA, is_kept)


def find_newest_before(lake: Lake, kept: Iterable[Cut], moment: datetime) -> Bound | None:
    """Find the newest cut, kept or dropped, written at or before a moment; None without one."""
    ledger = open_table(lake.dropped_cuts)
    columns = ["epoch", "cut_lsn", "created_at"]
    rows = [] if ledger is None else ledger.to_pyarrow_table(columns=columns).to_pylist()
    dated = [(describe_bound(row), row["created_at"]) for row in rows]
    dated += [(cut.bound, cut.created_at) for cut in kept]
    return max((bound for bound, at in dated if at <= moment), default=None)


def list_named_versions(
    lake: Lake, kept: Iterable[Cut], *, now: datetime, keeping: Keeping
) -> defaultdict[str, set[int]]:
    """List the versions of each table that kept cuts name, and cuts dropped within the grace."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    ledger, over = open_table(lake.dropped_cuts), now - keeping.grace
    columns = ["tables", "dropped_at"]
    rows = [] if ledger is None else ledger.to_pyarrow_table(columns=columns).to_pylist()
    dropped = [dict(row["tables"]) for row in rows if row["dropped_at"] >= over]
    for versions in [*(cut.versions for cut in kept), *dropped]:
        for table, version in versions.items():
            found[table].add(version)
    return found


def _read_rows(lake: Lake) -> list[dict[str, Any]]:
    cuts = open_table(lake.cuts)
    rows = [] if cuts is None else cuts.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (describe_bound(row), row["number"]))


def _copy_dropped(lake: Lake, rows: list[dict[str, Any]], now: datetime) -> None:
    copies = [{name: row[name] for name in _COPIED} | {"dropped_at": now} for row in rows]
    append_numbered(lake.dropped_cuts, copies, DROPPED_SCHEMA)


def _rewrite(
    folder: LakePlace, schema: pa.Schema, is_kept: Callable[[dict[str, Any]], bool]
) -> None:
    """Write the kept rows of a ledger as one file, with the numbers that they have."""
    for _ in range(_TRIES):
        # The disk may have refused the commit that this one builds on.
        rewrite_newest_commit(folder)
        ledger = open_delta(folder)
        rows = [row for row in ledger.to_pyarrow_table().to_pylist() if is_kept(row)]
        rows.sort(key=lambda row: (describe_bound(row), row["number"]))
        if replace_rows(ledger, folder, rows, schema, force=require_durable):
            return
    raise MergeError(
        f"{folder.name}: other processes committed first in each of {_TRIES} tries",
        fix="nothing: the next maintenance tries again",
        retry=Retry.LATER,
    )
