"""Reports of a replicate run: one materialization of staging/changes each interval.

An event costs the instance tens of milliseconds, and the instance keeps it. So a run adds up its
figures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from cdc_core.coordination.live import Figures
from spark_jobs.lake.lake import Lake, open_table


class StagingReports:
    """The last figures of a run, and the figures that were last reported."""

    def __init__(self, context: dg.OpExecutionContext, lake: Lake, key: dg.AssetKey) -> None:
        """Nothing is reported yet."""
        self._key = key
        self._context = context
        self._lake = lake
        self._newest: Figures | None = None
        self._told: Figures | None = None
        self._finished = threading.Event()

    def look(self, figures: Figures) -> None:
        """Take the newest figures; the thread of capture does not wait."""
        self._newest = figures

    @contextmanager
    def every(self, seconds: float) -> Iterator[None]:
        """Report at this interval while the block runs, and at its end."""
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
        # Without newer figures no session runs: no event, so the asset grows stale, as it is.
        if newest is None or (told is not None and newest.at <= told.at):
            return
        log = open_table(self._lake.changes)
        metadata = describe_staging(newest, told, version=None if log is None else log.version())
        self._context.log_event(dg.AssetMaterialization(self._key, metadata=metadata))
        self._told = newest


def describe_staging(
    newest: Figures, told: Figures | None, *, version: int | None
) -> dict[str, float | str]:
    """What a run has staged since its last report, and how far it is behind.

    Units: bytes and seconds of lag, rows per second over the interval.
    """
    # After a lost connection, a session counts from zero.
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
