"""The slot watch: says in the log what the slot holds back, before it becomes the source's trouble.

At each level of the budget once, then every minute; while the log's storage refuses, at once,
whatever is used: what is not staged cannot be confirmed, and the source keeps it for us.
"""

from __future__ import annotations

import logging
import time

from cdc_core.capture.progress import Progress
from cdc_core.source.retention import Growth, Retention

_SAY_AGAIN_S = 60.0

_logger = logging.getLogger("walgate.capture")


class SlotWatch:
    """What was seen of one slot, and what of it was said."""

    def __init__(self, progress: Progress) -> None:
        """Nothing is seen yet."""
        self._progress = progress
        self._growth = Growth()
        self._said_level = 0
        self._said_storage = False
        self._said_at = 0.0

    def look(self, retention: Retention) -> None:
        """Take a look, and say what is worth saying."""
        now = time.monotonic()
        self._growth.add(now, retention.retained_bytes)
        self._progress.retained_growth = self._growth.rate
        refused = self._progress.storage_error is not None
        level = retention.level
        news = level > self._said_level or (refused and not self._said_storage)
        if news or ((level or refused) and now - self._said_at >= _SAY_AGAIN_S):
            self._said_at = now
            fields = retention.describe(self._growth.rate)
            if level:
                fields["level_percent"] = level
            if refused:
                fields["reason"] = "the log cannot be written"
            _logger.warning("slot retains WAL", extra={"fields": fields})
        elif self._said_level and not level:
            _logger.info("slot drained", extra={"fields": retention.describe(None)})
        self._said_level = max(self._said_level, level) if level else 0
        self._said_storage = refused
