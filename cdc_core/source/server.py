"""The source as capture uses it: one query connection and one stream, for one slot."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import psycopg

from cdc_core.errors import Retry, SlotInUse, WrongServer
from cdc_core.protocol.messages import Announcement
from cdc_core.settings import SourceSettings
from cdc_core.source import marks
from cdc_core.source.catalog import complete_relation
from cdc_core.source.connection import open_connection
from cdc_core.source.membership import read_membership, require_publications
from cdc_core.source.primary import History, open_primary, read_history
from cdc_core.source.replication import ReplicationStream
from cdc_core.source.retention import Retention, read_retention
from cdc_core.source.role import require_replication
from cdc_core.source.slot import (
    Holder,
    Slot,
    read_holder,
    read_slot,
    require_held,
    require_usable,
)
from cdc_core.vocabulary import Lsn, Relation

# The walsender of a killed run ends within moments. A live consumer stays longer than this.
_TAKE_OVER_S = 15.0
_RETRY_S = 0.3
_SAY_AGAIN_S = 30.0

_logger = logging.getLogger("walgate.capture")


class MarkConnection:
    """A connection that writes marks and reads how far the server and the slot are."""

    def __init__(self, source: SourceSettings, history: History) -> None:
        """Connect to the primary that has this history. Raises: WrongServer, SourceError."""
        self._source = source
        self._connection = open_primary(
            source,
            lambda: history,
            application_name="walgate marks",
            answer_s=source.silence_timeout,
        )

    def emit_mark(self, detail: str) -> None:
        """Write a mark to the WAL. Raises: SourceError."""
        marks.emit_mark(self._connection, detail)

    def read_current_lsn(self) -> Lsn:
        """Read the LSN up to which the server has written WAL. Raises: SourceError."""
        return marks.read_current_lsn(self._connection)

    def require_publications(self) -> None:
        """Check that the publications exist. Raises: SourceError."""
        require_publications(self._connection, self._source.publication)

    def read_retention(self) -> Retention | None:
        """Read what the slot retains now; None if it is missing or lost. Raises: SourceError."""
        return read_retention(self._connection, self._source)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


class Source:
    """The slot, its stream and its server's catalog."""

    def __init__(self, settings: SourceSettings) -> None:
        """Open the catalog and the stream of one server. Raises: WrongServer, SourceError."""
        self._settings = settings
        self._connection = open_connection(
            settings, application_name="walgate catalog", answer_s=settings.silence_timeout
        )
        try:
            require_replication(self._connection)
            self.stream = ReplicationStream(settings)
        except BaseException:
            self._connection.close()
            raise
        self.server = self.stream.server
        try:
            self._require_one_server()
        except BaseException:
            self.close()
            raise

    def _require_one_server(self) -> None:
        """Check that both connections reached one server: the dsn may name several hosts."""
        found = read_history(self._connection)
        expected = History(self.server.system_id, self.server.timeline)
        if found != expected:
            where = f"{self._connection.info.host} port {self._connection.info.port}"
            raise WrongServer(
                f"{where} is a standby or another server: expected the server that streams"
                f" ({expected.system_id}, timeline {expected.timeline}), found {found.system_id},"
                f" timeline {found.timeline}",
                fix="name the primary alone in [source] dsn, or set target_session_attrs=primary",
                retry=Retry.LATER,
            )

    def read_slot(self) -> Slot:
        """Read the slot; check that capture may consume it. Raises: SlotLost, SourceError."""
        name = self._settings.slot
        found = read_slot(self._connection, name)
        return require_usable(found, name=name, database=self.server.database)

    def take_slot(self, is_stopped: Callable[[], bool]) -> Slot:
        """Start the stream, after a wait if another consumer holds the slot; return the slot.

        Capture waits some seconds for any consumer. It waits longer for a capture that sends no
        status, until the server has noticed that this capture is gone. Raises: SlotInUse,
        SourceError.
        """
        deadline = time.monotonic() + _TAKE_OVER_S
        first: Holder | None = None
        while True:
            try:
                self.stream.start(
                    slot=self._settings.slot,
                    publications=self._settings.publication,
                    origin=self._settings.origin,
                )
            except SlotInUse:
                holder = read_holder(self._connection, self._settings.slot)
                first = first or holder
                gone = holder is not None and holder == first and holder.is_capture
                if is_stopped() or (time.monotonic() > deadline and not gone):
                    raise
                if time.monotonic() > deadline and holder is not None:
                    deadline += _SAY_AGAIN_S
                    _say_waiting(holder)
                time.sleep(_RETRY_S)
                continue
            return self.read_slot()

    def require_publications(self) -> None:
        """Check that the publications exist. Raises: SourceError."""
        require_publications(self._connection, self._settings.publication)

    def read_current_lsn(self) -> Lsn:
        """Read the LSN up to which the server has written WAL. Raises: SourceError."""
        return marks.read_current_lsn(self._connection)

    def require_held(self) -> None:
        """Check that this stream still holds the slot. Raises: SlotInUse, SourceError."""
        name = self._settings.slot
        require_held(read_slot(self._connection, name), name=name, pid=self.stream.pid)

    def complete_relation(
        self, announcement: Announcement, *, previous: Relation | None, xid: int
    ) -> Relation:
        """Complete the relation that transaction `xid` announced, from the catalog.

        The result has the table's membership of the publications. Raises: SourceError.
        """
        relation = complete_relation(
            self._connection, announcement, previous=previous, xid=xid, slot=self._settings.slot
        )
        membership = read_membership(
            self._connection,
            self._settings.publication,
            announcement.oid,
            xid=xid,
            previous=None if previous is None else previous.published,
        )
        return replace(relation, published=membership)

    def close(self) -> None:
        """End the stream and disconnect."""
        self.stream.close()
        try:
            self._connection.close()
        except psycopg.Error:
            return


def _say_waiting(holder: Holder) -> None:
    _logger.warning(
        "a silent capture holds the slot, waiting until the server releases it",
        extra={"fields": {"pid": holder.pid, "fix": f"select pg_terminate_backend({holder.pid})"}},
    )
