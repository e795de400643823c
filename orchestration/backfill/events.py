"""Reports a run's backfills to Dagster: observations on the way, a materialization when done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from cdc_core.backfill.results import BackfillProgress
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName

# An event costs tens of milliseconds, so a table has one at most this often.
_OBSERVE_S = 15.0

Event = dg.AssetMaterialization | dg.AssetObservation


class BackfillReports:
    """The reports of one run: the last state of each table that it reported, and when."""

    def __init__(
        self,
        tell: Callable[[Event], None],
        partitions: Mapping[TableName, str],
        *,
        key: dg.AssetKey,
        is_whole: bool,
    ) -> None:
        """Nothing has begun. If `is_whole`, a table that is done fills its partition."""
        self._tell = tell
        self._key = key
        self._partitions = partitions
        self._is_whole = is_whole
        self._began: dict[TableName, float] = {}
        self._told: dict[TableName, tuple[float, BackfillState]] = {}

    def tell(self, table: TableName, progress: BackfillProgress) -> None:
        """Report a new state at once, and new rows at most once in `_OBSERVE_S`."""
        now = read_clock()
        began = self._began.setdefault(table, now)
        told_at, state = self._told.get(table, (now, BackfillState.BEGUN))
        if progress.state == state and now - told_at < _OBSERVE_S:
            self._told.setdefault(table, (now, state))
            return
        self._told[table] = (now, progress.state)
        metadata = {"table": str(table)} | describe_progress(progress, now - began)
        partition = self._partitions[table]
        # A backfill of a part does not fill the partition of its table.
        if progress.state is BackfillState.DONE and self._is_whole:
            self._tell(
                dg.AssetMaterialization(
                    self._key,
                    partition=partition,
                    description=_summarize(metadata),
                    metadata=_leave_out_unknown(metadata),
                )
            )
        else:
            self._tell(observe(self._key, partition, metadata, _summarize(metadata)))


def read_clock() -> float:
    """Seconds of the monotonic clock."""
    return time.monotonic()


def observe(
    key: dg.AssetKey,
    partition: str,
    metadata: Mapping[str, Any],
    description: str | None = None,
) -> dg.AssetObservation:
    """An observation of a table, without metadata that is None."""
    known = _leave_out_unknown(metadata)
    return dg.AssetObservation(key, partition=partition, description=description, metadata=known)


def describe_progress(progress: BackfillProgress, seconds: float) -> dict[str, Any]:
    """How far a backfill has come, `seconds` after this run of it began."""
    rate = (progress.rows - progress.rows_before) / max(seconds, 0.001)
    estimated = progress.rows_estimated
    percent, left = None, None
    if progress.state is BackfillState.DONE:
        percent = 100
    elif estimated:
        # The estimate may be too low: only a backfill that is done shows 100 %.
        percent = min(99, 100 * progress.rows // estimated)
        left = max(0, estimated - progress.rows)
    return {
        "state": str(BackfillState.RUNNING if progress.state.is_running else progress.state),
        "reason": progress.reason,
        "rows": progress.rows,
        "rows_estimated": estimated,
        "percent": percent,
        "chunks": progress.chunks,
        "stale_dropped": progress.stale,
        "not_removed": progress.unswept,
        "seconds": round(seconds, 1),
        "rows_per_second": round(rate, 1),
        "seconds_left": round(left / rate, 1) if left is not None and rate > 0 else None,
    }


def _summarize(metadata: Mapping[str, Any]) -> str:
    """The line that the page of the run shows."""
    chunks = "1 chunk" if metadata["chunks"] == 1 else f"{metadata['chunks']} chunks"
    known = "" if metadata["percent"] is None else f" ({metadata['percent']} %)"
    why = f": {metadata['reason']}" if metadata["reason"] else ""
    return (
        f"{metadata['table']}: {metadata['state']}{why}, {metadata['rows']:,} rows{known}"
        f" in {chunks} at {metadata['rows_per_second']:,.0f} rows/s"
    )


def _leave_out_unknown(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if value is not None}
