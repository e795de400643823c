"""The connection by which a backfill writes its marks into the WAL; others read the rows."""

from __future__ import annotations

import threading

import psycopg

from cdc_core.settings import SourceSettings
from cdc_core.source import marks
from cdc_core.source.primary import FindHistory, open_primary, recheck_history


class BackfillMarkConnection:
    """One connection for all threads, opened at its first use and again after it was lost."""

    def __init__(self, source: SourceSettings, find_history: FindHistory) -> None:
        """Prepare; the first use connects to the primary that has the history of the log."""
        self._source = source
        self._find_history = find_history
        self._lock = threading.Lock()
        self._connection: psycopg.Connection | None = None

    def emit(self, message: str) -> None:
        """Write a mark into the WAL; the stream carries it at this place. Raises: SourceError."""
        with self._lock:
            marks.emit_mark(self._connect(), message)

    def read_snapshot(self) -> str:
        """Read the visible transactions, in PostgreSQL's text form. Raises: SourceError."""
        with self._lock:
            return marks.read_snapshot(self._connect())

    def take_xid(self) -> int:
        """Take a transaction id, larger than every one taken before. Raises: SourceError."""
        with self._lock:
            return marks.take_xid(self._connect())

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _connect(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = open_primary(
                self._source,
                self._find_history,
                application_name="walgate steps",
                answer_s=self._source.silence_timeout,
            )
        else:
            recheck_history(self._connection, self._find_history)
        return self._connection
