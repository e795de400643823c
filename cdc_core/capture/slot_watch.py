"""The slot watch: says in the log what the slot holds back, before it becomes the source's trouble.

At each level of the budget once, then every minute. While the log's storage refuses, and where what
waits is not staged for long, at once, whatever is used: what is not staged cannot be confirmed, and
the source keeps it for us.
"""

from __future__ import annotations

import logging
import time

from cdc_core.capture.progress import Progress
from cdc_core.source.retention import Growth, Retention

_SAY_AGAIN_S = 60.0
# No batch takes this long: the storage hangs, or the source is busy with one transaction.
_STALLED_S = 30.0

_logger = logging.getLogger("walgate.capture")


class SlotWatch:
    """What was seen of one slot, and what of it was said."""

    def __init__(self, progress: Progress) -> None:
        """Nothing is seen yet."""
        self._progress = progress
        self._growth = Growth()
        self._said_level = 0
        self._said_reason = False
        self._said_at = 0.0

    def look(self, retention: Retention) -> None:
        """Take a look, and say what is worth saying."""
        now = time.monotonic()
        self._growth.add(now, retention.retained_bytes)
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
        """Why nothing is staged, although something waits; None where all is well."""
        progress = self._progress
        if progress.storage_error is not None:
            return "the log cannot be written"
        waiting_s = min(now - progress.staged_at, time.time() - progress.idle_at)
        return f"nothing staged for {waiting_s:.0f} s" if waiting_s >= _STALLED_S else None
