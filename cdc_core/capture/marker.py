"""The marker: emits marks, so that an idle or filtered database still moves the slot and the log.

On its own connection, the marker also reads the server's current LSN and the WAL that the slot
retains, and notices a server that shuts down.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Protocol

from cdc_core.capture.marks import format_mark
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.slot_watch import SlotWatch
from cdc_core.capture.watched_thread import WatchedThread
from cdc_core.errors import Retry, SourceError, SourceStopping
from cdc_core.source.retention import Retention
from cdc_core.vocabulary import Lsn

# A server writes some WAL by itself (running transactions, checkpoints, Walgate's marks). Such WAL
# gets a mark only once a minute.
_OWN_WAL_BYTES = 16 << 10
_QUIET_INTERVAL_S = 60.0
_LONGEST_LOOK_S = 1.0
_RECONNECT_S = 0.5

_logger = logging.getLogger("walgate.capture")


class MarkConnection(Protocol):
    """A connection that emits marks and reads the state of the server."""

    def emit_mark(self, detail: str) -> None:
        """Write a mark to the WAL."""
        ...

    def read_current_lsn(self) -> Lsn:
        """The LSN up to which the server has written its WAL."""
        ...

    def require_publications(self) -> None:
        """Check that the publications exist."""
        ...

    def read_retention(self) -> Retention | None:
        """The WAL that the slot retains now; None if the server cannot report it."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Marker:
    """The thread that emits marks: on request, and when the WAL moved but nothing was staged."""

    def __init__(
        self,
        connect: Callable[[], MarkConnection],
        *,
        progress: CaptureProgress,
        heartbeat_s: float,
    ) -> None:
        """Start the thread."""
        self._connect = connect
        self._progress = progress
        self._heartbeat_s = heartbeat_s
        self._requests: list[str] = []
        self._wake = threading.Event()
        self._stopping = False
        self._marked_at = float("-inf")
        self._slot_watch = SlotWatch(progress)
        self.thread = WatchedThread(self._run, name="walgate-marker")

    def request(self) -> str:
        """Ask for a mark now; return the id that it will have in the stream."""
        mark = uuid.uuid4().hex
        self._requests.append(mark)
        self._wake.set()
        return mark

    def finish(self) -> None:
        """Emit the requested marks and end the thread."""
        self._stopping = True
        self._wake.set()
        self.thread.join()

    def _run(self) -> None:
        connection: MarkConnection | None = None
        while True:
            stopping = self._stopping
            try:
                if connection is None:
                    connection = self._connect()
                self._look(connection)
            except SourceError as exc:
                if connection is not None:
                    connection.close()
                    connection = None
                _logger.warning("marker failed", extra={"fields": {"reason": exc.message}})
                # A server that shuts down waits until all WAL is confirmed to its walsenders. The
                # staged LSN never reaches that. So capture must disconnect to let the server stop.
                if exc.retry is Retry.AFTER_FIX or isinstance(exc, SourceStopping):
                    raise
            if stopping or (self._stopping and not self._requests):
                break
            wait_s = min(_LONGEST_LOOK_S, self._heartbeat_s / 2) if connection else _RECONNECT_S
            self._wake.wait(wait_s)
            self._wake.clear()
        if connection is not None:
            connection.close()

    def _look(self, connection: MarkConnection) -> None:
        while self._requests:
            self._emit(connection, self._requests[0])
            self._requests.pop(0)
        # From version 18 on, the server does not send the changes of a missing publication.
        connection.require_publications()
        self._progress.current = current = connection.read_current_lsn()
        retention = connection.read_retention()
        if retention is not None:
            self._slot_watch.look(retention)
        now = time.monotonic()
        silent_s = now - max(self._progress.staged_at, self._marked_at)
        moved = current - self._progress.staged
        own = moved < _OWN_WAL_BYTES and now - self._marked_at < _QUIET_INTERVAL_S
        if moved > 0 and silent_s >= self._heartbeat_s and not own:
            self._emit(connection, uuid.uuid4().hex)

    def _emit(self, connection: MarkConnection, mark: str) -> None:
        connection.emit_mark(format_mark(mark))
        self._marked_at = time.monotonic()
