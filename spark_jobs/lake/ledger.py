"""The ledgers of cuts, at which all tables can be read together, and of table states.

Both are small tables, which delta-rs reads and writes without a JVM. The ledger of states has only
what nothing else records: whether a table streams or is halted, as merges found it, and requests
for whole backfills. All other states follow from these and from `ledger/backfills`
(completeness.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.lake_storage import ledgers
from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.table_states import RECORDED_STATES, TableState, require_recorded
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, Relation, TableName
from spark_jobs.lake.cut_plan import Place, choose_places
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Bound, Lake, open_table

_VERSIONS = pa.map_(pa.string(), pa.int64())
_TIME = pa.timestamp("us", tz="UTC")
CUTS_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32()),
        pa.field("cut_lsn", pa.int64()),
        pa.field("committed_at", _TIME),
        pa.field("created_at", _TIME),
        pa.field("run_id", pa.string()),
        pa.field("tables", _VERSIONS),
        pa.field("merged_epoch", _VERSIONS),
        pa.field("merged", _VERSIONS),
        pa.field("held_epoch", _VERSIONS),
        pa.field("held", _VERSIONS),
        pa.field("reports", _VERSIONS),
        pa.field("halted", pa.list_(pa.string())),
        pa.field("partial", pa.list_(pa.string())),
        pa.field("number", pa.int64()),
    ]
)
STATES_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("fix", pa.string()),
        pa.field("epoch", pa.int32()),
        pa.field("since_lsn", pa.int64()),
        pa.field("at", _TIME),
        pa.field("curable", pa.bool_()),
        pa.field("number", pa.int64()),
    ]
)


_CUT_ORDER = [("epoch", "ascending"), ("cut_lsn", "ascending"), ("number", "ascending")]
_LISTED = ["path", "min.epoch", "min.cut_lsn", "max.epoch", "max.cut_lsn"]
# The state in the row of a request. No table has it recorded as its state.
_REQUESTED = TableState.QUEUED


@dataclass(frozen=True, slots=True)
class Cut:
    """A bound at which all tables can be read together.

    All maps are by target name: `versions` has Delta versions, `merged` the bound that each target
    is merged through, `held` the bound in that version's commit. A table that is not in `merged` is
    merged through the cut itself. `partial` names the tables that may lack rows.
    """

    bound: Bound
    committed_at: datetime | None
    created_at: datetime
    run_id: str
    versions: dict[str, int] = field(default_factory=dict)
    merged: dict[str, Bound] = field(default_factory=dict)
    halted: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    held: dict[str, Bound] = field(default_factory=dict)

    def find_place(self, target: str) -> Place:
        """Return how far a target is merged at this cut, and its version."""
        merged = self.merged.get(target, self.bound)
        return Place(merged, self.versions.get(target), self.held.get(target))

    def list_tables(self) -> list[TableName]:
        """The tables whose rows have a version."""
        return _list_tables(self.versions)

    def list_named_tables(self) -> list[TableName]:
        """All tables that the cut names, also those without a version."""
        return _list_tables(self.versions.keys() | self.merged.keys())

    @property
    def places(self) -> dict[str, Place]:
        """How far each target is merged, and its version, by name."""
        return {table: self.find_place(table) for table in self.versions.keys() | self.merged}


def _list_tables(names: Iterable[str]) -> list[TableName]:
    """The tables of the targets with rows, among the names of targets."""
    targets = map(Target.parse, names)
    return sorted(target.table for target in targets if target.kind is TargetKind.ROWS)


@dataclass(frozen=True, slots=True)
class StateRecord:
    """Whether a target follows the log; if not, why, since which bound, and how to fix it.

    If `curable`, a whole backfill ends the halt. Walgate queues this backfill without a request.
    """

    table: str
    state: TableState
    reason: str | None = None
    fix: str | None = None
    since: Bound | None = None
    curable: bool = False

    @property
    def since_lsn(self) -> Lsn | None:
        """The LSN at which the table halted."""
        return None if self.since is None else self.since.lsn


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a whole backfill of a table that begins at or above `since`, and the reason."""

    table: str
    reason: str
    since: Bound


def find_cut(lake: Lake, at: Bound | None = None) -> Cut | None:
    """Find the newest cut, or the newest at or below a bound; None if there is none."""
    cuts = open_table(lake.cuts)
    if cuts is None:
        return None
    files = [file for file in _list_files(cuts) if at is None or file.low <= at]
    # A file has a cut at its least bound. So only files that reach the greatest of these are read.
    least = max((file.low for file in files if file.has_low), default=Bound(0, Lsn(0)))
    found = CUTS_SCHEMA.empty_table()
    for file in files:
        if file.high >= least:
            with open_input(lake.cuts / file.name) as source:
                found = pa.concat_tables([found, pq.read_table(source, schema=CUTS_SCHEMA)])
    if at is not None:
        epoch, lsn = pc.field("epoch"), pc.field("cut_lsn")
        found = found.filter((epoch < at.epoch) | ((epoch == at.epoch) & (lsn <= int(at.lsn))))
    newest = found.sort_by(_CUT_ORDER).slice(max(0, found.num_rows - 1)).to_pylist()
    return describe_cut(newest[0]) if newest else None


def read_places(lake: Lake, cut: Cut | None, relations: Mapping[int, Relation]) -> dict[str, Place]:
    """The places of targets in the newest cut, without targets that nobody asks for any more."""
    tables = {relation.table for relation in relations.values()}
    wanted = {target for table in tables for target in lake.choose_targets(table)}
    return choose_places({} if cut is None else cut.places, wanted)


def describe_bound(row: Mapping[str, Any]) -> Bound:
    """Return the bound of a row of `ledger/cuts` or `ledger/dropped_cuts`."""
    return Bound(row["epoch"], Lsn(row["cut_lsn"]))


def describe_cut(row: Mapping[str, Any]) -> Cut:
    """Return the cut of a row of `ledger/cuts`."""
    return Cut(
        describe_bound(row),
        row["committed_at"],
        row["created_at"],
        row["run_id"],
        dict(row["tables"]),
        _bounds_of(row, "merged"),
        tuple(row["halted"]),
        tuple(row["partial"]),
        _bounds_of(row, "held"),
    )


def find_oldest_bound(lake: Lake) -> Bound | None:
    """Find the bound of the oldest cut that is kept; None if there is none."""
    return _find_least(open_table(lake.cuts))


def find_first_bound(lake: Lake) -> Bound | None:
    """Find the bound of the first cut that was ever written, kept or dropped; None if none was."""
    found = [_find_least(open_table(ledger)) for ledger in (lake.cuts, lake.dropped_cuts)]
    return min((bound for bound in found if bound is not None), default=None)


def _find_least(cuts: DeltaTable | None) -> Bound | None:
    if cuts is None:
        return None
    files = _list_files(cuts)
    if all(file.has_low for file in files):
        return min((file.low for file in files), default=None)
    rows = cuts.to_pyarrow_table(columns=["epoch", "cut_lsn"]).to_pylist()
    return min(map(describe_bound, rows))


@dataclass(frozen=True, slots=True)
class _CutFile:
    """A file of `ledger/cuts`: its cuts lie between two bounds, by the statistics of the file.

    `has_low`: one of its cuts is `low`. The statistics of a file with cuts of several epochs do not
    say so.
    """

    name: str
    low: Bound
    high: Bound
    has_low: bool


def _list_files(cuts: DeltaTable) -> list[_CutFile]:
    known = pa.table(cuts.get_add_actions(flatten=True))
    return [
        _CutFile(
            unquote(file["path"]),
            Bound(file["min.epoch"], Lsn(file["min.cut_lsn"])),
            Bound(file["max.epoch"], Lsn(file["max.cut_lsn"])),
            has_low=file["min.epoch"] == file["max.epoch"],
        )
        for file in known.select(_LISTED).to_pylist()
    ]


def write_cut(lake: Lake, cut: Cut) -> None:
    """Append a cut. The caller must have made every commit of the round before."""
    row = {
        "epoch": cut.bound.epoch,
        "cut_lsn": int(cut.bound.lsn),
        "committed_at": cut.committed_at,
        "created_at": cut.created_at,
        "run_id": cut.run_id,
        "tables": list(cut.versions.items()),
        "merged_epoch": [(table, bound.epoch) for table, bound in cut.merged.items()],
        "merged": [(table, int(bound.lsn)) for table, bound in cut.merged.items()],
        "held_epoch": [(table, bound.epoch) for table, bound in cut.held.items()],
        "held": [(table, int(bound.lsn)) for table, bound in cut.held.items()],
        "reports": [],
        "halted": list(cut.halted),
        "partial": list(cut.partial),
    }
    append_numbered(lake.cuts, [row], CUTS_SCHEMA)


def read_states(lake: Lake) -> dict[str, StateRecord]:
    """Read the state that merges last recorded of each table that has one, by quoted name."""
    return {
        row["table"]: StateRecord(
            table=row["table"],
            state=TableState(row["state"]),
            reason=row["reason"],
            fix=row["fix"],
            since=_since_of(row),
            curable=bool(row.get("curable")),
        )
        for row in _read_rows(lake)
        if row["state"] in RECORDED_STATES
    }


def write_states(lake: Lake, states: Iterable[StateRecord]) -> None:
    """Append the states of tables. Raises: IllegalMove for a state that is only derived."""
    rows = [
        _describe(state.table, require_recorded(state.state), state.since)
        | {"reason": state.reason, "fix": state.fix, "curable": state.curable}
        for state in states
    ]
    append_numbered(lake.states, rows, STATES_SCHEMA)


def rewrite_newest_commit(ledger: LakePlace) -> None:
    """Write the newest commit of a ledger to new files, durably.

    The disk may have refused the commit of a process that has ended. Linux reports that only once.
    Raises: MergeError.
    """
    found = open_table(ledger)
    if found is not None:
        newest = found.version()
        require_durable(ledger, above=newest - 1, through=newest, left=newest)


def queue_tables(lake: Lake, tables: Iterable[TableName], *, reason: str, since: Bound) -> None:
    """Request a whole backfill of each table that begins at or above a bound.

    One backfill that begins at or above the bounds of all requests for a table serves them all.
    """
    rows = [_describe(str(table), _REQUESTED, since) | {"reason": reason} for table in tables]
    if rows:
        rewrite_newest_commit(lake.states)
        append_numbered(lake.states, rows, STATES_SCHEMA)


def read_requests(lake: Lake) -> list[Request]:
    """Read every request for a whole backfill, oldest first, also those that are done."""
    return [
        Request(row["table"], row["reason"] or "", since)
        for row in _read_rows(lake)
        if row["state"] == _REQUESTED and (since := _since_of(row)) is not None
    ]


def _read_rows(lake: Lake) -> list[dict[str, Any]]:
    states = open_table(lake.states)
    rows = [] if states is None else states.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["number"])


def append_numbered(
    folder: LakePlace, rows: Sequence[Mapping[str, Any]], schema: pa.Schema
) -> None:
    """Append rows in one durable commit; the commit's number gives the order of rows.

    Raises: DeltaError, MergeError if the storage refuses.
    """
    ledgers.append_numbered(folder, rows, schema, force=require_durable)


def _describe(table: str, state: TableState, since: Bound | None) -> dict[str, Any]:
    return {
        "table": table,
        "state": state.value,
        "epoch": None if since is None else since.epoch,
        "since_lsn": None if since is None else int(since.lsn),
        "at": datetime.now(UTC),
    }


def _since_of(row: dict[str, Any]) -> Bound | None:
    epoch, lsn = row.get("epoch"), row["since_lsn"]
    return None if epoch is None or lsn is None else Bound(epoch, Lsn(lsn))


def _bounds_of(row: Mapping[str, Any], name: str) -> dict[str, Bound]:
    epochs, lsns = dict(row[f"{name}_epoch"]), dict(row[name])
    return {table: Bound(epochs[table], Lsn(lsn)) for table, lsn in lsns.items()}
