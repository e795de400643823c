"""Describes the targets that tables have besides their rows, for `walgate status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc_core.table_states import TableState
from cdc_core.targets import TargetKind
from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import Cut, StateRecord


def describe_targets(
    lake: Lake, table: TableName, states: Mapping[str, StateRecord], cut: Cut | None
) -> list[dict[str, Any]]:
    """Describe the targets of a table besides its rows: the merged LSN, and why one is halted."""
    described = []
    for target in lake.choose_targets(table):
        if target.kind is TargetKind.ROWS:
            continue
        state = states.get(str(target))
        merged = None if cut is None else cut.merged.get(str(target))
        described.append(
            {
                "target": str(target),
                "state": (TableState.STREAMING if state is None else state.state).value,
                "reason": None if state is None else state.reason,
                "fix": None if state is None else state.fix,
                "merged_lsn": None if merged is None else str(merged.lsn),
            }
        )
    return described
