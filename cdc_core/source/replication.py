"""The replication connection: reads frames and sends status, by direct calls of libpq.

psycopg has no replication API. Since 3.3 it executes START_REPLICATION, and `get_copy_data(1)`
after `consume_input` reads what follows. The blocking form would hold the interpreter lock, so that
the status thread could not run. libpq is not thread safe: one lock guards every call of the stream.
"""

from __future__ import annotations

import select
import threading
import time
from dataclasses import dataclass

import psycopg
from psycopg import pq

from cdc_core.errors import RECOVER, Retry, SourceError, SourceSilent, StreamRefused
from cdc_core.protocol import frames
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import (
    CAPTURE_NAME,
    names_no_value,
    needs_person,
    open_connection,
    source_errors,
)
from cdc_core.vocabulary import Lsn

Frame = bytes | memoryview

# After the socket was empty, capture waits before it reads, so that bytes gather. Fewer and larger
# reads make both ends cheaper (walsender 3.6 instead of 5.5 microseconds a row). A full socket
# buffer stops the walsender, and a unix socket holds some 100 small rows. So the wait gets shorter
# after a read of more than `_GATHER_BYTES`, and longer after a smaller one.
_GATHER_BYTES = 12 << 10
_SHORTEST_GATHER_S = 0.0002
_LONGEST_GATHER_S = 0.005
_READS_AT_ONCE = 4
# Rows may be large, so the bytes of one read have a limit, too.
_MAX_BYTES = 4 << 20
_CLOSE_DEADLINE_S = 3.0
# How often capture asks for an answer, within the time in which the server must answer.
_ASKED_WITHIN = 4


@dataclass(frozen=True, slots=True)
class Server:
    """What IDENTIFY_SYSTEM returns, the version, and how long we may be silent."""

    system_id: str
    timeline: int
    current: Lsn
    database: str
    version: int
    wal_sender_timeout_s: float


class ReplicationStream:
    """One walsender and its stream; reading and sending may happen on two threads."""

    def __init__(self, source: SourceSettings) -> None:
        """Connect as a walsender. Raises: SourceError."""
        self._silence_s = source.silence_timeout
        self._connection = open_connection(
            source,
            application_name=CAPTURE_NAME,
            replication=True,
            answer_s=source.silence_timeout,
        )
        self._pgconn = self._connection.pgconn
        self._lock = threading.Lock()
        self._gather_s = _SHORTEST_GATHER_S
        self._silent_since: float | None = None
        self._is_silent = False
        self._asked_at = time.monotonic()
        self.pid = self._connection.info.backend_pid
        self.server = self._identify()

    def _identify(self) -> Server:
        with source_errors("identify the server"):
            row = self._connection.execute("IDENTIFY_SYSTEM").fetchone()
        assert row is not None
        return Server(
            system_id=str(row[0]),
            timeline=int(row[1]),
            current=Lsn.parse(row[2]),
            database=str(row[3]),
            version=self._connection.info.server_version,
            wal_sender_timeout_s=self._agree_on_silence(),
        )

    def _agree_on_silence(self) -> float:
        """Make the server notice our end as soon as we notice its end; return its timeout.

        Then the slot is free again soon after the network has failed. A walsender that is busy for
        long with changes that it does not send answers within half of its timeout. With a timeout
        of 0 it never answers. Units: seconds.
        """
        with source_errors("agree on wal_sender_timeout"):
            shown = self._connection.execute("SHOW wal_sender_timeout").fetchone()
            assert shown is not None
            timeout = _parse_server_duration(shown[0])
            if 0 < timeout <= self._silence_s:
                return timeout
            wanted = round(1000 * self._silence_s)
            self._connection.execute(f"SET wal_sender_timeout TO {wanted}")
        return self._silence_s

    def _accept_raw_bytes(self) -> None:
        """Make the server send the bytes of an SQL_ASCII database as they are.

        With client encoding UTF8, the walsender ends the stream at the first value that is not
        UTF-8. Without conversion it sends the bytes, and only that row is undecoded. The driver
        then gives text as bytes, so this comes after every other answer was read.
        """
        if self._connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            with source_errors("set the client encoding"):
                self._connection.execute("set client_encoding to 'SQL_ASCII'")

    def switch_point(self, timeline: int) -> Lsn:
        """Find the LSN at which the server's history left `timeline`; 0/0 if it did not.

        Raises: SourceError. Source: PostgreSQL documentation, section 53.4, TIMELINE_HISTORY.
        """
        with source_errors("read the timeline history"):
            row = self._connection.execute(f"TIMELINE_HISTORY {self.server.timeline}").fetchone()
        content = "" if row is None else row[1]
        text = bytes(content).decode() if not isinstance(content, str) else content
        if text.startswith("\\x"):
            text = bytes.fromhex(text[2:]).decode()
        for line in text.splitlines():
            fields = line.split()
            if fields and fields[0] == str(timeline):
                return Lsn.parse(fields[1])
        return Lsn(0)

    def start(self, *, slot: str, publications: tuple[str, ...], origin: str) -> None:
        """Take the slot and start the stream at its confirmed flush LSN.

        The statement asks for position 0/0, so that the server sends again all that is not
        confirmed. With a later position it would skip what the replay check must see.
        Raises: SlotInUse, SourceError.
        """
        self._accept_raw_bytes()
        names = ",".join('"' + name.replace('"', '""') + '"' for name in publications)
        options = [
            "proto_version '1'",
            "publication_names '{}'".format(names.replace("'", "''")),
            "messages 'true'",
        ]
        if origin != "any":
            options.append(f"origin '{origin}'")
        statement = f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({", ".join(options)})'
        with source_errors(f"start replication from slot {slot}"):
            self._connection.execute(statement)

    def read_frames(self, *, most: int, wait_s: float) -> list[Frame]:
        """Read the frames that have arrived; none if nothing arrives within `wait_s`.

        A read ends after `most` frames or some megabytes. Raises: SourceError if the stream has
        ended or is broken; SourceSilent if the server is silent for too long.
        """
        received = self._drain(most)
        if received:
            self._silent_since = None
            return received
        readable, _, _ = select.select([self._pgconn.socket], [], [], wait_s)
        if not readable:
            self._note_silence()
            return []
        self._silent_since = None
        time.sleep(self._gather_s)
        with self._lock, source_errors("read the replication stream"):
            for _ in range(_READS_AT_ONCE):
                self._pgconn.consume_input()
        received = self._drain(most)
        wanted = 0.8 if sum(map(len, received)) > _GATHER_BYTES else 1.25
        self._gather_s = min(_LONGEST_GATHER_S, max(_SHORTEST_GATHER_S, wanted * self._gather_s))
        return received

    def _note_silence(self) -> None:
        """Give up the stream if nothing has arrived for too long: the server was asked to answer.

        Raises: SourceSilent.
        """
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > self._silence_s:
            self._is_silent = True
            raise SourceSilent(
                f"replication stopped: no answer for {self._silence_s:g} s",
                fix="check that the server is up and reachable; capture connects again by itself",
                retry=Retry.LATER,
            )

    def _drain(self, most: int) -> list[Frame]:
        received: list[Frame] = []
        append = received.append
        get = self._pgconn.get_copy_data
        total = 0
        with self._lock, source_errors("read the replication stream"):
            self._pgconn.consume_input()
            for _ in range(most):
                size, frame = get(1)
                if size > 0:
                    # A view is three objects that the garbage collector counts; bytes are none.
                    append(bytes(frame))
                    total += size
                    if total > _MAX_BYTES:
                        break
                elif size == 0:
                    break
                else:
                    self._raise_end()
        return received

    def _raise_end(self) -> None:
        result = self._pgconn.get_result()
        reason, state = "the server ended the stream", ""
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            field = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            if field and names_no_value(state):
                reason = field.decode("utf-8", "replace")
            else:
                reason = f"{reason} (SQLSTATE {state})"
        if needs_person(state):
            raise StreamRefused(
                f"replication stopped: {reason} (SQLSTATE {state})",
                fix="run `walgate check`; if the publication was made, or made again, after changes"
                " that the slot still has to read, " + RECOVER,
                retry=Retry.AFTER_FIX,
            )
        raise SourceError(
            f"replication stopped: {reason}",
            fix="check that the server is up and reachable, then try again",
            retry=Retry.LATER,
        )

    def send_status(self, flushed: Lsn, *, is_asking: bool = False) -> None:
        """Confirm everything up to `flushed`. Raises: SourceError.

        Asks the server for an answer if `is_asking`, or if the last request is old enough.
        """
        now = time.monotonic()
        ask = is_asking or now - self._asked_at >= self._silence_s / _ASKED_WITHIN
        if ask:
            self._asked_at = now
        message = frames.format_status(flushed, unix_us=time.time_ns() // 1000, reply_requested=ask)
        with self._lock, source_errors("send the replication status"):
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()

    def close(self) -> None:
        """End the stream so that the server reads the last status first, then disconnect."""
        try:
            with self._lock:
                is_streaming = self._pgconn.transaction_status == pq.TransactionStatus.ACTIVE
                if is_streaming and not self._is_silent:
                    self._pgconn.put_copy_end()
                    self._pgconn.flush()
                    self._await_end()
        except psycopg.Error:
            pass  # The connection ends anyway; the server notices by itself.
        finally:
            self._connection.close()

    def _await_end(self) -> None:
        deadline = time.monotonic() + _CLOSE_DEADLINE_S
        while (left := deadline - time.monotonic()) > 0:
            size, _ = self._pgconn.get_copy_data(1)
            if size < 0:
                return
            if size == 0:
                select.select([self._pgconn.socket], [], [], left)
                self._pgconn.consume_input()


def _parse_server_duration(text: str) -> float:
    """Parse a setting such as `1min`, `10s`, `500ms`, `0` into seconds."""
    for suffix, factor in (("ms", 0.001), ("min", 60.0), ("s", 1.0), ("h", 3600.0), ("d", 86400.0)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text) / 1000
