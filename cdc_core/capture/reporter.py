"""The reporter: publishes a run's figures in Redis, after each batch and once a second.

It reads `CaptureProgress`, which the other threads write. No thread waits for the reporter. Without
Redis, capture goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cdc_core.capture.interfaces import Coordination
from cdc_core.capture.progress import CaptureProgress
from cdc_core.coordination.live import Figures

_INTERVAL_S = 1.0
# Capture stages batches of a few rows every 20 ms or so. Nobody needs figures that often.
_SHORTEST_INTERVAL_S = 0.05


class Reporter:
    """The thread that publishes figures."""

    def __init__(
        self,
        coordination: Coordination,
        *,
        progress: CaptureProgress,
        term: int | None,
        epoch: int,
        watch: Callable[[Figures], None],
    ) -> None:
        """Start the thread, which also calls `watch` with each set of figures."""
        self._coordination = coordination
        self._progress = progress
        self._term = term
        self._epoch = epoch
        self._watch = watch
        self._rows = 0
        self._rows_per_second = 0.0
        self._measured_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walgate-reporter", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Publish once more and end the thread."""
        self._stop.set()
        self._progress.report.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._progress.report.wait(_INTERVAL_S)
            self._progress.report.clear()
            stopping = self._stop.is_set()
            if self._term is None:
                self._term = self._coordination.take_term()
            figures = self._look()
            self._watch(figures)
            self._coordination.publish(figures)
            if stopping:
                return
            self._stop.wait(_SHORTEST_INTERVAL_S)

    def _look(self) -> Figures:
        progress = self._progress
        self._measure_rate()
        lag_bytes = max(0, progress.current - progress.staged)
        unix_s = time.time()
        # WAL without changes to stage is no lag, even if the last commit is long ago.
        current_at = max(progress.committed_at_us / 1e6, progress.idle_at)
        behind_s = unix_s - current_at if current_at else 0.0
        return Figures(
            term=self._term,
            state=progress.state,
            epoch=self._epoch,
            staged_lsn=str(progress.staged),
            current_lsn=str(progress.current),
            lag_bytes=lag_bytes,
            lag_seconds=round(max(0.0, behind_s), 3) if lag_bytes else 0.0,
            rows_per_second=self._rows_per_second,
            rows=progress.rows,
            transactions=progress.transactions,
            batches=progress.batches,
            at=unix_s,
            storage_error=progress.storage_error or "",
            retained_growth=progress.retained_growth,
        )

    def _measure_rate(self) -> None:
        """Measure the rows per second over at least a second; in less, one batch gives no rate."""
        rows, now = self._progress.rows, time.monotonic()
        seconds = now - self._measured_at
        if seconds >= _INTERVAL_S:
            self._rows_per_second = round((rows - self._rows) / seconds, 1)
            self._rows, self._measured_at = rows, now
