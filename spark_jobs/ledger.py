"""The ledger: at which LSNs every table can be read together, and which tables are halted.

Small tables, one row a commit, written and read through delta-rs without a JVM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import write_deltalake

from cdc_core.vocabulary import Lsn
from spark_jobs.lake import Bound, Lake, open_table

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
        pa.field("reports", _VERSIONS),
        pa.field("halted", pa.list_(pa.string())),
    ]
)
STATES_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("fix", pa.string()),
        pa.field("since_lsn", pa.int64()),
        pa.field("at", _TIME),
    ]
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A bound at which all tables can be read together.

    `versions` are Delta versions, `merged` each table's own bound, both by quoted table name. A
    table not in `merged` is merged through the cut itself: it had no change.
    """

    bound: Bound
    committed_at: datetime | None
    created_at: datetime
    run_id: str
    versions: dict[str, int] = field(default_factory=dict)
    merged: dict[str, Bound] = field(default_factory=dict)
    halted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableState:
    """Whether a table follows the log; if not, why, since where, and what to do."""

    table: str
    state: str
    reason: str | None
    fix: str | None
    since_lsn: Lsn | None


def find_cut(lake: Lake, at: Bound | None = None) -> Cut | None:
    """The newest cut, or the newest at or below a bound; None if there is none."""
    cuts = open_table(lake.cuts)
    if cuts is None:
        return None
    # Each file knows its least cut: only those that may hold the newest are read.
    files = pa.table(cuts.get_add_actions(flatten=True)).to_pylist()
    starts = [Bound(file["min.epoch"], Lsn(file["min.cut_lsn"])) for file in files]
    least = max((start for start in starts if at is None or start <= at), default=None)
    if least is None:
        return None
    epoch, lsn = ds.field("epoch"), ds.field("cut_lsn")
    above = (epoch > least.epoch) | ((epoch == least.epoch) & (lsn >= int(least.lsn)))
    rows = [
        row
        for row in cuts.to_pyarrow_dataset().to_table(filter=above).to_pylist()
        if at is None or _bound_of(row) <= at
    ]
    row = max(rows, key=lambda row: (_bound_of(row), row["created_at"]))
    epochs, lsns = dict(row["merged_epoch"]), dict(row["merged"])
    return Cut(
        _bound_of(row),
        row["committed_at"],
        row["created_at"],
        row["run_id"],
        dict(row["tables"]),
        {table: Bound(epochs[table], Lsn(lsn)) for table, lsn in lsns.items()},
        tuple(row["halted"]),
    )


def write_cut(lake: Lake, cut: Cut) -> None:
    """Add a cut, after the last commit of its round."""
    row = {
        "epoch": cut.bound.epoch,
        "cut_lsn": int(cut.bound.lsn),
        "committed_at": cut.committed_at,
        "created_at": cut.created_at,
        "run_id": cut.run_id,
        "tables": list(cut.versions.items()),
        "merged_epoch": [(table, bound.epoch) for table, bound in cut.merged.items()],
        "merged": [(table, int(bound.lsn)) for table, bound in cut.merged.items()],
        "reports": [],
        "halted": list(cut.halted),
    }
    write_deltalake(lake.cuts, pa.Table.from_pylist([row], CUTS_SCHEMA), mode="append")


def read_states(lake: Lake) -> dict[str, TableState]:
    """The newest state of every table that ever had one to tell."""
    states = open_table(lake.states)
    if states is None:
        return {}
    rows = sorted(states.to_pyarrow_table().to_pylist(), key=lambda row: row["at"])
    return {
        row["table"]: TableState(
            row["table"],
            row["state"],
            row["reason"],
            row["fix"],
            None if row["since_lsn"] is None else Lsn(row["since_lsn"]),
        )
        for row in rows
    }


def write_states(lake: Lake, states: list[TableState]) -> None:
    """Add the states that changed."""
    rows = [
        {
            "table": state.table,
            "state": state.state,
            "reason": state.reason,
            "fix": state.fix,
            "since_lsn": None if state.since_lsn is None else int(state.since_lsn),
            "at": datetime.now(UTC),
        }
        for state in states
    ]
    write_deltalake(lake.states, pa.Table.from_pylist(rows, STATES_SCHEMA), mode="append")


def _bound_of(row: dict[str, Any]) -> Bound:
    return Bound(row["epoch"], Lsn(row["cut_lsn"]))
