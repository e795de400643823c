"""The reporter: shows a run's figures in Redis once a second; no Redis stops nothing."""

from __future__ import annotations

import threading
import time

from cdc_core.capture.progress import Progress
from cdc_core.capture.shores import Coordination
from cdc_core.coordination.live import Figures

_INTERVAL_S = 1.0


class Reporter:
    """The thread that publishes figures."""

    def __init__(
        self, coordination: Coordination, *, progress: Progress, term: int | None, epoch: int
    ) -> None:
        """Start the thread."""
        self._coordination = coordination
        self._progress = progress
        self._term = term
        self._epoch = epoch
        self._rows = 0
        self._looked_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walgate-reporter", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Publish once more and end the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            stopping = self._stop.wait(_INTERVAL_S)
            if self._term is None:
                self._term = self._coordination.take_term()
            self._coordination.publish(self._look())
            if stopping:
                return

    def _look(self) -> Figures:
        progress, now = self._progress, time.monotonic()
        rows, seconds = progress.rows - self._rows, now - self._looked_at
        self._rows, self._looked_at = progress.rows, now
        lag_bytes = max(0, progress.current - progress.staged)
        unix_s = time.time()
        behind_s = unix_s - progress.committed_at_us / 1e6 if progress.committed_at_us else 0.0
        return Figures(
            term=self._term,
            state=progress.state,
            epoch=self._epoch,
            staged_lsn=str(progress.staged),
            current_lsn=str(progress.current),
            lag_bytes=lag_bytes,
            lag_seconds=round(max(0.0, behind_s), 3) if lag_bytes else 0.0,
            rows_per_second=round(rows / seconds, 1) if seconds > 0 else 0.0,
            rows=progress.rows,
            at=unix_s,
            storage_error=progress.storage_error or "",
        )
