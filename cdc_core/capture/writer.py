"""The writer: stages one batch while the loop decodes the next.

The loop waits if the writer is still busy then.

After a failed append, the writer asks whether the log has the batch, and only then tries again. The
session ends if a file is lost before it is staged, or if another writer has committed to the log.
Capture confirms nothing before its commit has returned.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cdc_core.backoff import Backoff
from cdc_core.capture.batches import Batch
from cdc_core.capture.interfaces import ChangeLog
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.watched_thread import WatchedThread
from cdc_core.errors import Retry, StagingError
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.parts import Part, PartLost
from cdc_core.vocabulary import Lsn, Relation

# The longest pause is short: the lake is a local folder, so a try costs little, and the slot holds
# back WAL until a try succeeds.
_BACKOFF = Backoff(first_s=0.25, max_s=5.0)
_POLL_S = 0.1

_logger = logging.getLogger("walgate.capture")


@dataclass(slots=True)
class PendingBatch:
    """What one Delta commit stages: a batch, or the sealed parts of one large transaction."""

    end_lsn: Lsn
    committed_at_us: int
    rows: int
    transactions: int
    relations: tuple[tuple[Relation, Lsn], ...]
    batch: Batch | None
    parts: list[Part] = field(default_factory=list)


class Writer:
    """The thread that stages batches in the order in which the loop submits them."""

    def __init__(
        self,
        log: ChangeLog,
        *,
        epoch: Epoch,
        progress: CaptureProgress,
        is_stopped: Callable[[], bool],
        prepare: Callable[[], None],
    ) -> None:
        """Start the thread; `is_stopped` says whether the run should end.

        The thread calls `prepare` before the first commit, and again if `prepare` fails.
        """
        self._log = log
        self._epoch = epoch
        self._progress = progress
        self._is_stopped = is_stopped
        self._prepare = prepare
        self._is_prepared = False
        self._waiting: queue.Queue[PendingBatch | None] = queue.Queue(maxsize=1)
        self._is_free = threading.Semaphore()
        # Only the loop counts submitted batches; only the writer counts finished ones.
        self._submitted = 0
        self._finished = 0
        self._stopping = threading.Event()
        self.thread = WatchedThread(self._run, name="walgate-writer")

    @property
    def is_idle(self) -> bool:
        """Whether every submitted batch is staged."""
        return self._finished == self._submitted

    def submit(self, landing: PendingBatch) -> None:
        """Hand over a batch; wait until the one before it is staged.

        Raises: what ended the writer; StagingError if the storage refuses and the run should end.
        """
        self._submitted += 1
        while True:
            self.thread.require_alive()
            if self._is_free.acquire(timeout=_POLL_S):
                self._waiting.put(landing)
                return
            reason = self._progress.storage_error
            if reason is not None and self._is_stopped():
                raise _storage_refused(reason, landing.end_lsn)

    def finish(self) -> None:
        """Wait until every submitted batch is staged or the storage refuses; end the thread.

        Raises: what ended the writer; StagingError if the storage refuses.
        """
        self._stopping.set()
        while self.thread.is_alive:
            try:
                self._waiting.put(None, timeout=_POLL_S)
            except queue.Full:
                continue
            break
        self.thread.join()
        self.thread.require_alive()

    def _run(self) -> None:
        while (landing := self._waiting.get()) is not None:
            self._stage(landing)
            self._finished += 1
            self._is_free.release()

    def _stage(self, landing: PendingBatch) -> None:
        failures = 0
        while True:
            try:
                if not (landing.parts and self._log.has_landed(landing.parts)):
                    self._append(landing)
            except PartLost:
                raise
            except (StagingError, OSError) as exc:
                reason = exc.message if isinstance(exc, StagingError) else str(exc.strerror)
                self._progress.storage_error = reason
                failures += 1
                pause = _BACKOFF.pause_after(failures)
                _logger.warning(
                    "staging failed", extra={"fields": {"reason": reason, "retry_s": pause}}
                )
                if self._stopping.wait(pause):
                    raise _storage_refused(reason, landing.end_lsn) from exc
                continue
            self._progress.record_staged(
                landing.end_lsn,
                rows=landing.rows,
                transactions=landing.transactions,
                committed_at_us=landing.committed_at_us,
            )
            return

    def _append(self, landing: PendingBatch) -> None:
        if not self._is_prepared:
            self._prepare()
            self._is_prepared = True
        started = time.monotonic()
        self._log.store_relations(landing.relations, epoch=self._epoch.epoch)
        if landing.batch is not None and not landing.parts:
            changes = landing.batch.to_table(self._epoch.epoch)
            landing.parts.append(self._log.write_part(changes))
        landing.batch = None
        self._log.append(landing.parts, epoch=self._epoch, end_lsn=landing.end_lsn)
        _logger.debug(
            "batch staged",
            extra={
                "fields": {
                    "rows": landing.rows,
                    "staged_lsn": str(landing.end_lsn),
                    "ms": round(1000 * (time.monotonic() - started)),
                }
            },
        )


def _storage_refused(reason: str, end_lsn: Lsn) -> StagingError:
    return StagingError(
        f"capture stopped before it staged or confirmed the batch up to {end_lsn}: {reason}",
        fix="check that the lake's storage is up, writable and not full; the next run stages it",
        retry=Retry.LATER,
    )
