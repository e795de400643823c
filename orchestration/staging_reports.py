"""What a replicate run tells of itself: one materialization of staging/changes each interval.

Events cost the instance tens of milliseconds each and are kept for ever, so a run adds up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from cdc_core.coordination.live import Figures
from spark_jobs.lake import Lake, open_table


class StagingReports:
    """The last figures of a run, and which of them were reported already."""

    def __init__(self, context: dg.OpExecutionContext, lake: Lake, key: dg.AssetKey) -> None:
        """Nothing is reported yet."""
        self._key = key
        self._context = context
        self._lake = lake
        self._newest: Figures | None = None
        self._told: Figures | None = None
        self._finished = threading.Event()

    def look(self, figures: Figures) -> None:
        """Take a look of the capture's; its thread is not kept waiting."""
        self._newest = figures

    @contextmanager
    def every(self, seconds: float) -> Iterator[None]:
        """Tell at this interval while the block runs, and at its end."""
        teller = threading.Thread(
            target=self._tell_until_finished, args=(seconds,), name="walgate-reports", daemon=True
        )
        teller.start()
        try:
            yield
        finally:
            self._finished.set()
            teller.join()

    def _tell_until_finished(self, seconds: float) -> None:
        while not self._finished.wait(seconds):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        newest, told = self._newest, self._told
        # Without a newer look there is no session: silence lets the asset grow stale, as it is.
        if newest is None or (told is not None and newest.at <= told.at):
            return
        log = open_table(self._lake.changes)
        metadata = describe_staging(newest, told, version=None if log is None else log.version())
        self._context.log_event(dg.AssetMaterialization(self._key, metadata=metadata))
        self._told = newest


def describe_staging(
    newest: Figures, told: Figures | None, *, version: int | None
) -> dict[str, float | str]:
    """Say what a run staged since it last told, and how far it is behind.

    Units: bytes and seconds of lag, rows a second over the interval.
    """
    # A session that lost its connection begins to count again.
    is_same_session = told is not None and told.term == newest.term and told.rows <= newest.rows
    before = told if is_same_session else None
    rows = newest.rows - (before.rows if before else 0)
    seconds = newest.at - told.at if told else 0.0
    described: dict[str, float | str] = {
        "rows": rows,
        "transactions": newest.transactions - (before.transactions if before else 0),
        "batches": newest.batches - (before.batches if before else 0),
        "rows_per_second": round(rows / seconds, 1) if seconds > 0 else newest.rows_per_second,
        "lag_seconds": newest.lag_seconds,
        "lag_bytes": newest.lag_bytes,
        "staged_lsn": newest.staged_lsn,
        "source_lsn": newest.current_lsn,
        "epoch": str(newest.epoch),
    }
    return described if version is None else described | {"delta_version": version}
