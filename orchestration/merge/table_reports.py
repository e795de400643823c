"""What a merge run reports of its rounds: materializations of the tables and of the cut.

A round takes seconds and an event costs tens of milliseconds. So each asset has at most one event
in an interval, with the sum of what its rounds did.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from deltalake import DeltaTable

from cdc_core.table_states import TableState
from cdc_core.targets import Target, TargetKind
from orchestration.runs.keys import AssetKeys
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.damaged_tables import open_if_readable
from spark_jobs.lake.lake import Lake, read_losses
from spark_jobs.lake.ledger import StateRecord, find_cut, read_states
from spark_jobs.merge.rounds import Round
from spark_jobs.target.result import TableMergeResult

_INTERVAL_S = 15.0
# Delta's names of types that SQL names differently.
_SQL_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_OWN_COLUMNS = {
    "_epoch": "Incarnation of the slot from which the row's last change came.",
    "_commit_lsn": "Commit LSN of the transaction that last changed the row.",
    "_seq": "Ordinal of that change in its transaction.",
    "_committed_at": "When that transaction was committed at the source.",
    "_raw": "Exact texts of values that the typed columns do not give back, by column.",
    "_holes": "Columns with a missing value: a TOAST value that was not sent, or a hidden one.",
    "_deleted": "Whether the source has deleted the row. It has its last values.",
    "_deleted_at": "When the source committed what removed the row.",
    "_op": "What the entry does: insert, update, delete, truncate, read, sweep or undecoded.",
    "_old": "Texts of the old row that the source sent, by column.",
    "_detail": "What else the log says of the entry, as JSON.",
    "_end_lsn": "End LSN of the transaction: from there on, a reader sees the entry.",
}

Metadata = dict[str, dg.TableSchema | dg.MetadataValue[Any] | float | str]


@dataclass(slots=True)
class _Sum:
    """What rounds did to one table since its last event."""

    rounds: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0
    ways: Counter[str] = field(default_factory=Counter)

    def add(self, merged: TableMergeResult) -> None:
        self.rounds += 1
        self.inserted += merged.inserted
        self.updated += merged.updated
        self.deleted += merged.deleted
        self.seconds += merged.seconds
        self.ways[merged.way] += 1


class TableReports:
    """The rounds of a run that are not reported yet, by asset."""

    def __init__(
        self, tell: Callable[[dg.AssetMaterialization], None], lake: Lake, keys: AssetKeys
    ) -> None:
        """Nothing happened yet."""
        self._keys = keys
        self._tell = tell
        self._lake = lake
        self._targets: dict[str, tuple[_Sum, TableMergeResult, Round]] = {}
        self._rounds: list[Round] = []
        self._told_at: dict[dg.AssetKey, float] = {}

    @property
    def told(self) -> set[dg.AssetKey]:
        """The assets that have had an event."""
        return set(self._told_at)

    def add(self, done: Round) -> None:
        """Take a round; report the assets that are due."""
        self._rounds.append(done)
        for name, merged in done.tables.items():
            total = self._targets[name][0] if name in self._targets else _Sum()
            total.add(merged)
            self._targets[name] = (total, merged, done)
        self._tell_due(_INTERVAL_S)

    def tell_all(self) -> None:
        """Report everything that is not reported yet."""
        self._tell_due(0.0)

    def describe_unchanged(self, target: Target | None) -> Metadata | None:
        """Report the state of an unchanged target or of the cut; None if there is none yet."""
        cut = find_cut(self._lake)
        if cut is None:
            return None
        standing: Metadata = {"cut_lsn": str(cut.bound.lsn), "rounds": 0}
        if target is None:
            return standing
        delta = open_if_readable(self._lake.locate_target(target))
        if delta is None:
            return None
        merged = cut.merged.get(str(target), cut.bound)
        return (
            standing
            | _describe_state(self._lake, target)
            | _describe_losses(read_losses(delta) or {})
            | {
                "rows_inserted": 0,
                "rows_updated": 0,
                "rows_deleted": 0,
                "merged_lsn": str(merged.lsn),
                "delta_version": delta.version(),
                "dagster/column_schema": describe_columns(delta),
            }
        )

    def _tell_due(self, interval_s: float) -> None:
        now = time.monotonic()
        for name in list(self._targets):
            target = Target.parse(name)
            key = self._keys.find_target(target)
            if now - self._told_at.get(key, -interval_s) >= interval_s:
                total, merged, done = self._targets.pop(name)
                delta = open_if_readable(self._lake.locate_target(target))
                state = _describe_state(self._lake, target)
                self._materialize(key, _describe_merges(total, merged, done, delta) | state)
        if self._rounds and now - self._told_at.get(self._keys.cuts, -interval_s) >= interval_s:
            rounds, self._rounds = self._rounds, []
            self._materialize(self._keys.cuts, describe_rounds(rounds))

    def _materialize(self, key: dg.AssetKey, metadata: Metadata) -> None:
        self._tell(dg.AssetMaterialization(key, metadata=metadata))
        self._told_at[key] = time.monotonic()


def _describe_state(lake: Lake, target: Target) -> Metadata:
    """The state of a target, with the reason if it is not whole or does not follow the log."""
    cut, name = find_cut(lake), str(target)
    recorded = read_states(lake).get(name)
    state = recorded or StateRecord(name, TableState.STREAMING)
    if target.kind is TargetKind.ROWS:
        known = None if cut is None else cut.bound
        state = read_completeness(lake).derive_state(name, recorded, known)
    described: Metadata = {"state": state.state.value}
    return described | {"reason": state.reason} if state.reason else described


def _describe_merges(
    total: _Sum, merged: TableMergeResult, done: Round, delta: DeltaTable | None
) -> Metadata:
    described: Metadata = {
        "rows_inserted": total.inserted,
        "rows_updated": total.updated,
        "rows_deleted": total.deleted,
        "dagster/row_count": merged.rows,
        "merged_lsn": str(done.cut.lsn),
        "delta_version": merged.version,
        "rounds": total.rounds,
        "merge_seconds": round(total.seconds, 3),
        "written_by": ", ".join(f"{way} ({n})" for way, n in total.ways.most_common()),
        "lag_seconds": _age(done),
        **_describe_losses(merged.lossy),
    }
    if delta is not None:
        described["dagster/column_schema"] = describe_columns(delta)
    return described


def _describe_losses(losses: Mapping[str, int]) -> Metadata:
    """How many values only `_raw` holds: in all, and by column for each that ever had one."""
    by_column = {f"lossy_values/{name}": count for name, count in sorted(losses.items())}
    return {"lossy_values": sum(losses.values()), **by_column}


def describe_rounds(rounds: list[Round]) -> Metadata:
    """Say what rounds merged and how fast. Units: seconds, log entries a second."""
    last = rounds[-1]
    entries = sum(done.entries for done in rounds)
    seconds = sum(done.seconds for done in rounds)
    described: Metadata = {
        "cut_lsn": str(last.cut.lsn),
        "rounds": len(rounds),
        "entries": entries,
        "round_seconds": round(seconds / len(rounds), 3),
        "entries_per_second": round(entries / seconds, 1) if seconds > 0 else 0.0,
        "lag_seconds": _age(last),
        "waited_seconds": max((done.waited_seconds or 0.0 for done in rounds), default=0.0),
        "tables_changed": len({table for done in rounds for table in done.tables}),
        "tables_halted": len(last.halted),
        "tables_partial": len(last.partial),
    }
    if last.partial:
        described["partial"] = ", ".join(last.partial)
    if last.halted:
        lines = [f"| {table} | {h.reason} | {h.fix} |" for table, h in sorted(last.halted.items())]
        described["halted"] = dg.MetadataValue.md(
            "\n".join(["| table | reason | fix |", "|---|---|---|", *lines])
        )
    return described


def describe_columns(delta: DeltaTable) -> dg.TableSchema:
    """The columns of a table as the page shows them."""
    return dg.TableSchema(
        [
            dg.TableColumn(
                field.name,
                _name_type(json.loads(field.type.to_json())),
                description=_OWN_COLUMNS.get(field.name),
            )
            for field in delta.schema().fields
        ]
    )


def _name_type(written: str | dict[str, Any]) -> str:
    """A Delta type as SQL writes it; tables of ours hold plain types, arrays and maps."""
    if isinstance(written, str):
        return _SQL_NAMES.get(written, written)
    inner = [written[part] for part in ("elementType", "keyType", "valueType") if part in written]
    return f"{written['type']}<{','.join(_name_type(part) for part in inner)}>"


def _age(done: Round) -> float:
    """Seconds from the newest commit of a cut until now."""
    if done.committed_at is None:
        return 0.0
    return round((datetime.now(UTC) - done.committed_at).total_seconds(), 3)
