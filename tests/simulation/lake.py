"""The lake as merges and readers see it, and the fold of a range of its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.vocabulary import Lsn, Operation, Position, Relation
from spark_jobs.fast_path.arrow_fold import ArrowOutcome, fold_by_arrow
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import find_converts
from spark_jobs.lake.lake import Epoch, Lake
from spark_jobs.log.reading import ROW_OPERATIONS
from tests.simulation.model import Folded
from tests.simulation.staging import Entry
from tests.simulation.tables import Rows
from tests.simulation.world import World

_ENTRIES = pa.schema(
    [
        ("epoch", pa.int32()),
        ("commit_lsn", pa.int64()),
        ("seq", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("relation_version", pa.int64()),
        ("op", pa.string()),
        ("values", pa.list_(pa.field("element", pa.string()))),
        ("unchanged", pa.list_(pa.field("element", pa.int32()))),
        ("old_values", pa.list_(pa.field("element", pa.string()))),
    ]
)


@dataclass(frozen=True)
class SimulatedLake(Lake):
    """The lake of a world; `process` is the one that uses it."""

    process: str = ""

    @classmethod
    def make(cls, process: str) -> SimulatedLake:
        """The lake as a process has it."""
        return cls(LocalPlace("lake"), process=process)

    def read_epochs(self) -> list[Epoch]:
        """Every epoch, oldest first."""
        return [Epoch(e.epoch, e.system_id, e.first_lsn) for e in World.now.log.epochs]

    def read_relations(self) -> dict[int, Relation]:
        """Every relation, by version."""
        rows = World.now.log.relations
        return {row["relation_version"]: Relation.from_description(row) for row in rows}

    @contextmanager
    def lock_table(self, name: str, *, jvm: int | None) -> Iterator[None]:
        """Keep others from a table."""
        del jvm
        tables, process = World.now.tables, self.process
        if name in tables.locks:
            World.now.scheduler.wait(f"waits for {name}", lambda: name not in tables.locks)
        tables.locks[name] = process
        try:
            yield
        finally:
            tables.locks.pop(name, None)


def fold_changes(plan: TablePlan, base: Rows) -> Rows:
    """The rows of a table after the changes of a plan, by the fold on Arrow if it can fold them."""
    entries = _read(plan)
    outcome = _fold_by_arrow(plan, entries)
    if outcome is not None:
        return _apply(base, outcome)
    folded = Folded(dict(base))
    for entry in entries:
        folded.apply(replace(entry, version=None), {})
    return folded.rows


def can_fold_by_arrow(plan: TablePlan) -> bool:
    """Whether the fold on Arrow can fold the changes of a plan."""
    return _fold_by_arrow(plan, _read(plan)) is not None


def _fold_by_arrow(plan: TablePlan, entries: list[Entry]) -> ArrowOutcome | None:
    assert plan.schema is not None
    if not entries or any(entry.op not in ROW_OPERATIONS for entry in entries):
        return None
    columns = find_converts(plan.schema)
    assert columns is not None
    outcome = fold_by_arrow(_make_entries(entries), columns, plan.schema.key)
    # The rest of a fold needs files of the table.
    is_whole = outcome is not None and not outcome.carried and not outcome.undecided.num_rows
    return outcome if is_whole else None


def _read(plan: TablePlan) -> list[Entry]:
    """The changes of rows and the sweeps of a plan, after its last TRUNCATE."""
    frame: Any = plan.read()
    of: tuple[Entry, ...] = frame.entries
    entries = [e for e in of if e.op in ROW_OPERATIONS or e.op == Operation.SWEEP]
    cut_at = plan.truncated_at
    return entries if cut_at is None else [e for e in entries if e.position > cut_at]


def _make_entries(entries: Iterable[Entry]) -> pa.Table:
    rows = [
        {
            "epoch": entry.position.epoch,
            "commit_lsn": int(entry.position.commit_lsn),
            "seq": entry.position.seq,
            "relation_version": entry.version,
            "op": entry.op,
            "values": entry.values,
            "unchanged": entry.unchanged,
            "old_values": entry.old,
        }
        for entry in entries
    ]
    return pa.Table.from_pylist(rows, schema=_ENTRIES)


def _apply(base: Rows, outcome: ArrowOutcome) -> Rows:
    rows = dict(base)
    for row in outcome.gone.to_pylist():
        rows.pop(str(row["id"]), None)
    for row in outcome.rows.to_pylist():
        position = Position(row["_epoch"], Lsn(row["_commit_lsn"]), row["_seq"])
        rows[str(row["id"])] = ((str(row["id"]), row["v"], row["big"]), position)
    return rows
