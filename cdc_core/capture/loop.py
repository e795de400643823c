"""Capture's loop: turns frames into batches, stages them, and confirms nothing before it is staged.

One thread reads and decodes. Others stage, send status, emit marks and publish figures. A batch
closes only between transactions: when it is full, or when the batch before is staged and its own
waiting time is over.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from cdc_core.capture.interfaces import ChangeLog, Stream
from cdc_core.capture.marker import Marker
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.spool import Spool
from cdc_core.capture.status import StatusSender
from cdc_core.capture.transactions import Collector, Frame
from cdc_core.capture.writer import PendingBatch, Writer
from cdc_core.crash_points import reach
from cdc_core.errors import Retry, StagingError, WalgateError
from cdc_core.settings import CaptureSettings
from cdc_core.staging.log import Fenced
from cdc_core.vocabulary import MARK_PREFIX, Lsn

_FRAMES_AT_ONCE = 4096
_WAIT_S = 0.1
_SKIPPED_INTERVAL_S = 60.0

_logger = logging.getLogger("walgate.capture")


@dataclass(frozen=True, slots=True)
class RunLimit:
    """When a run ends: at the mark of its start (`until_current`), at a deadline, or at a stop.

    `deadline` is a time of the monotonic clock. The loop goes on past the deadline until a batch is
    staged. If the loop is writing a large transaction to the spool then, it goes on until that is
    staged. If a session breaks after the deadline, the run does not begin another.
    """

    stop: threading.Event
    until_current: bool = False
    deadline: float | None = None

    def is_met(self) -> bool:
        """Whether the deadline is over or a stop was asked for. The loop may still go on."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or self.stop.is_set()


class CaptureLoop:
    """One term of capture, over a started stream."""

    def __init__(
        self,
        *,
        stream: Stream,
        log: ChangeLog,
        collector: Collector,
        writer: Writer,
        status: StatusSender,
        marker: Marker,
        progress: CaptureProgress,
        settings: CaptureSettings,
        epoch: int,
    ) -> None:
        """Take over the parts; their threads run already."""
        self._stream = stream
        self._log = log
        self._epoch = epoch
        self._collector = collector
        self._writer = writer
        self._status = status
        self._marker = marker
        self._progress = progress
        self._settings = settings
        self._spool: Spool | None = None
        # The end LSN of the last transaction that was spooled and submitted.
        self._spooled_to = Lsn(0)
        self._due_at = math.inf
        self._awaited: str | None = None
        self._replay_open = not collector.is_replay_checked
        self._skipped_messages = 0
        self._skipped_logged_at = -math.inf

    def run(self, bound: RunLimit) -> None:
        """Stage until the run may end, then drain. Raises: WalgateError, Fenced."""
        self._awaited = self._marker.request()
        self._progress.state = "streaming"
        while not self._may_end(bound):
            self._require_alive()
            self._receive(self._stream.read_frames(most=_FRAMES_AT_ONCE, wait_s=_WAIT_S))
            self._stage_if_due()
            self._note_idle()
            self._log_skipped()
            if bound.until_current and self._awaited is None:
                break
        if not bound.until_current:
            self._await_spooled(bound)
        self.drain()

    def drain(self) -> None:
        """Stage the whole transactions that wait, emit a last mark, send a last status."""
        self._progress.state = "draining"
        self._stage()
        reach("during_shutdown")
        self._marker.request()
        self._marker.finish()
        self._writer.finish()
        self._status.finish()
        self._discard_spool()
        self._progress.state = "stopped"

    def abandon(self) -> None:
        """End the threads; stage what was submitted, if possible, and remove the spool."""
        self._marker.finish()
        with suppress(WalgateError, Fenced):
            self._writer.finish()
        with suppress(WalgateError):
            self._status.finish()
        self._discard_spool()

    def _may_end(self, bound: RunLimit) -> bool:
        """Whether to end now. The next run receives again what this one has not staged.

        If a run always ended at its deadline, a transaction that takes longer would never be
        staged, and the slot would hold back WAL without limit.
        """
        if bound.stop.is_set():
            return True
        has_moved = self._progress.batches > 0 or self._spooled_to > 0
        return bound.is_met() and has_moved and self._spool is None

    def _await_spooled(self, bound: RunLimit) -> None:
        """Wait until the last spooled transaction is staged, even if the storage refuses it.

        `drain` would give it up at the next failure, and the next run would receive it all again.
        """
        while self._progress.staged < self._spooled_to and not bound.stop.wait(_WAIT_S):
            self._require_alive()

    def _discard_spool(self) -> None:
        if self._spool is not None:
            self._spool.discard()

    def _require_alive(self) -> None:
        for part in (self._writer, self._status, self._marker):
            part.thread.require_alive()

    def _receive(self, frames: list[Frame]) -> None:
        position = 0
        while position < len(frames):
            position = self._collector.feed(frames, position)
            # Look for the mark before it is taken; the drain stages it.
            if self._awaited is not None and self._collector.has_mark(self._awaited):
                self._awaited = None
            self._spool_if_large()
        if self._collector.closed_transactions:
            patience_s = self._settings.batch_seconds * self._collector.patience
            self._due_at = min(self._due_at, time.monotonic() + patience_s)
        if self._replay_open and self._collector.is_replay_checked:
            self._replay_open = False
            self._progress.record_replay_checked()

    def _note_idle(self) -> None:
        """Note the time if nothing waits to be staged, once the mark of the start has come."""
        collector = self._collector
        is_waiting = collector.closed_transactions or collector.open_size or self._spool
        if self._awaited is None and not is_waiting and self._writer.is_idle:
            self._progress.idle_at = time.time()

    def _log_skipped(self) -> None:
        """Log how many foreign messages have Walgate's prefix, at most once a minute."""
        skipped, now = self._collector.skipped_messages, time.monotonic()
        is_due = now - self._skipped_logged_at >= _SKIPPED_INTERVAL_S
        if skipped > self._skipped_messages and is_due:
            self._skipped_messages, self._skipped_logged_at = skipped, now
            fields = {"prefix": MARK_PREFIX, "count": skipped}
            _logger.warning("messages of other programs skipped", extra={"fields": fields})

    def _spool_if_large(self) -> None:
        """Write the open transaction to the spool if it is too large; submit it at its end."""
        collector = self._collector
        ended = collector.spool_ended
        if self._spool is None:
            if collector.open_size <= self._settings.spool_bytes:
                return
            self._stage()
            self._spool = Spool(self._log, epoch=self._epoch)
            _logger.info("spool opened", extra={"fields": {"bytes": collector.open_size}})
        elif ended is None and collector.size < self._settings.batch_bytes // 4:
            return
        try:
            self._spool.write(collector.take_spooled())
            reach("while_spooling")
            landing = None if ended is None else self._spool.seal(ended)
        except OSError as exc:
            raise StagingError(
                f"cannot write the spool: {exc.strerror}",
                fix="free space for [lake] spool; the server sends the transaction again",
                retry=Retry.LATER,
            ) from exc
        if landing is not None:
            self._spool = None
            self._writer.submit(landing)
            self._spooled_to = landing.end_lsn

    def _stage_if_due(self) -> None:
        settings, collector = self._settings, self._collector
        if not collector.closed_transactions:
            return
        full = collector.rows >= settings.batch_rows or collector.size >= settings.batch_bytes
        if full or (self._writer.is_idle and time.monotonic() >= self._due_at):
            self._stage()

    def _stage(self) -> None:
        batch = self._collector.take()
        self._due_at = math.inf
        if batch is None:
            return
        self._writer.submit(
            PendingBatch(
                end_lsn=batch.end_lsn,
                committed_at_us=batch.committed_at_us,
                rows=batch.rows,
                transactions=len(batch.transactions.xid),
                relations=batch.relations,
                batch=batch,
            )
        )
