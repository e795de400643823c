"""The slot watch: logs warnings about retained WAL before it harms the source.

It warns once at each level of the budget, then every minute. It warns at once, at any level, if the
storage of the log refuses batches or if changes wait for long. Capture cannot confirm changes that
are not staged, so the source keeps their WAL.
"""

from __future__ import annotations

import logging
import time

from cdc_core.capture.progress import CaptureProgress
from cdc_core.source.retention import Growth, Retention

_SAY_AGAIN_S = 60.0
# No batch takes this long: the storage hangs, or the source is busy with one transaction.
_STALLED_S = 30.0

_logger = logging.getLogger("walgate.capture")


class SlotWatch:
    """The growth of one slot's retained WAL, and the last warning about it."""

    def __init__(self, progress: CaptureProgress) -> None:
        """Start with no measurement."""
        self._progress = progress
        self._growth = Growth()
        self._said_level = 0
        self._said_reason = False
        self._said_at = 0.0

    def look(self, retention: Retention) -> None:
        """Add a measurement; log a warning if one is due."""
        now = time.monotonic()
        self._growth.add(now, retention.retained_bytes)
        if retention.confirmed is not None:
            self._progress.slot_confirmed = retention.confirmed
        self._progress.retained_growth = self._growth.rate
        reason = self._explain_waiting(now)
        level = retention.level
        news = level > self._said_level or (reason and not self._said_reason)
        if news or ((level or reason) and now - self._said_at >= _SAY_AGAIN_S):
            self._said_at = now
            fields = retention.describe(self._growth.rate)
            if level:
                fields["level_percent"] = level
            if reason:
                fields["reason"] = reason
            _logger.warning("slot retains WAL", extra={"fields": fields})
        elif self._said_level and not level:
            _logger.info("slot drained", extra={"fields": retention.describe(None)})
        self._said_level = max(self._said_level, level) if level else 0
        self._said_reason = reason is not None

    def _explain_waiting(self, now: float) -> str | None:
        """Why nothing is staged although something waits; None if nothing waits for long."""
        progress = self._progress
        if progress.storage_error is not None:
            return "the log cannot be written"
        waiting_s = min(now - progress.staged_at, time.time() - progress.idle_at)
        return f"nothing staged for {waiting_s:.0f} s" if waiting_s >= _STALLED_S else None
