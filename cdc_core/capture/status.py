"""The status thread: confirms to the server on time what is staged, even if the storage is slow.

A server that receives nothing for `wal_sender_timeout` drops the connection. So this thread depends
only on the clock and the stream. If the thread fails, the loop ends.
"""

from __future__ import annotations

from cdc_core.capture.interfaces import Stream
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.watched_thread import WatchedThread
from cdc_core.crash_points import reach

_LONGEST_INTERVAL_S = 10.0
_SHORTEST_INTERVAL_S = 0.05


class StatusSender:
    """Sends the confirmable LSN as soon as it moves, and at least every quarter of the timeout."""

    def __init__(self, stream: Stream, *, progress: CaptureProgress, timeout_s: float) -> None:
        """Start the thread; `timeout_s` is the server's wal_sender_timeout, 0 for none."""
        self._stream = stream
        self._progress = progress
        interval = timeout_s / 4 if timeout_s else _LONGEST_INTERVAL_S
        self._interval_s = min(_LONGEST_INTERVAL_S, max(_SHORTEST_INTERVAL_S, interval))
        self._stopping = False
        self.thread = WatchedThread(self._run, name="walgate-status")

    def finish(self) -> None:
        """Send a last status and end the thread. Raises: SourceError."""
        self._stopping = True
        self._progress.confirm.set()
        self.thread.join()
        self.thread.require_alive()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._progress.confirm.wait(self._interval_s)
            self._progress.confirm.clear()
            stopping = self._stopping
            self._stream.send_status(self._progress.confirmable)
            reach("after_flush")
