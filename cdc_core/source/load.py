"""Decides whether reading must wait: because of the slot's budget, or because staging lags."""

from __future__ import annotations

import threading

import psycopg

from cdc_core.errors import WalgateError
from cdc_core.quantities import format_size
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_for_quick_query, source_errors
from cdc_core.source.primary import FindHistory, recheck_history
from cdc_core.source.retention import find_retention, read_slot_budget
from cdc_core.source.slot import read_slot


class LoadWatch:
    """Looks at the slot when asked to, over one connection that it keeps."""

    def __init__(
        self,
        source: SourceSettings,
        find_history: FindHistory,
        *,
        most_percent: float,
        most_lag: int,
    ) -> None:
        """Set the limits; `find_reason` connects.

        Units: `most_percent` in percent of the slot's budget, `most_lag` in bytes of WAL above the
        slot's confirmed flush LSN.
        """
        self._source = source
        self._find_history = find_history
        self._most_percent = most_percent
        self._most_lag = most_lag
        self._lock = threading.Lock()
        self._connection: psycopg.Connection | None = None

    def find_reason(self) -> str | None:
        """Find a reason to read nothing now; None if there is none or the look failed.

        If the server or the lake does not answer here, the reader itself will get the error.
        """
        with self._lock:
            try:
                return self._look()
            except WalgateError:
                self._close()
                return None

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._close()

    def _look(self) -> str | None:
        if self._connection is None:
            self._connection = open_for_quick_query(self._source, application_name="walgate load")
        # Nobody reads from the slot of a former primary: its lag would block reading permanently.
        recheck_history(self._connection, self._find_history)
        slot = read_slot(self._connection, self._source.slot)
        if slot is None or slot.confirmed_flush is None:
            return None
        retention = find_retention(slot, read_slot_budget(self._connection, self._source))
        if retention is not None and retention.used_percent >= self._most_percent:
            return (
                f"the slot retains {format_size(retention.retained_bytes)},"
                f" {retention.used_percent:g} % of its budget; the limit for reading is"
                f" {self._most_percent:g} %"
            )
        with source_errors("read how far staging is"):
            row = self._connection.execute(
                "select pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::bigint",
                (str(slot.confirmed_flush),),
            ).fetchone()
        assert row is not None
        lag = int(row[0])
        if lag < self._most_lag:
            return None
        return (
            f"{format_size(lag)} of WAL are not staged yet; the limit for reading is"
            f" {format_size(self._most_lag)}"
        )

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
