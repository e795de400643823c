"""Tends the log beside capture: a thread trims, compacts and cleans it, off the path of batches.

The upkeep of the log may fail for as long as it likes: capture goes on, and the next look tries
again. The thread has a low priority, because batches must not wait for it.
"""

from __future__ import annotations

import logging
import threading

from cdc_core.capture.interfaces import ChangeLog
from cdc_core.capture.progress import CaptureProgress
from cdc_core.errors import WalgateError
from cdc_core.thread_priority import lower_priority

_LOOK_S = 30.0
_BETWEEN_STEPS_S = 0.1

_logger = logging.getLogger("walgate.capture")


class LogTending:
    """The thread that tends the log while a session streams."""

    def __init__(self, log: ChangeLog, *, progress: CaptureProgress, epoch: int) -> None:
        """Start the thread."""
        self._log = log
        self._progress = progress
        self._epoch = epoch
        self._is_over = threading.Event()
        self._last_failure: dict[str, str] | None = None
        self._thread = threading.Thread(target=self._run, name="walgate-upkeep", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """End the thread after the step that it is in. A short session does one step at its end."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        lower_priority()
        wait_s, steps = _LOOK_S, 0
        while not self._is_over.wait(wait_s):
            wait_s = _BETWEEN_STEPS_S if self._do_step() else _LOOK_S
            steps += 1
        if not steps:
            self._do_step()

    def _do_step(self) -> bool:
        """Do one step of the upkeep; whether there may be more to do at once."""
        progress = self._progress
        # Before the first commit of this session, a session before it that was only paused could
        # still commit a file that it wrote long ago.
        if not progress.batches or progress.slot_confirmed is None:
            return False
        try:
            is_unfinished = self._log.tend(self._epoch, progress.slot_confirmed)
        except Exception as error:  # noqa: BLE001 - Capture goes on, whatever fails here.
            fields = {"reason": repr(error)}
            if isinstance(error, WalgateError):
                fields = {"reason": error.message, "fix": error.fix}
            if fields != self._last_failure:
                _logger.warning("upkeep of the log failed", extra={"fields": fields})
            self._last_failure = fields
            return False
        self._last_failure = None
        return is_unfinished
