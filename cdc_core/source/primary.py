"""Opens connections to the primary whose history the log holds, and proves each of them.

A snapshot of a standby lists no running transactions, and a lock on it stops nobody on the primary.
A former primary still answers after a promotion. Data from such a server looks right, but may be
wrong. A host name, a list of hosts or a pooler can lead any connection to such a server. So Walgate
checks each connection that reads rows or writes marks when it opens the connection. It checks the
connection of a chunk again in the transaction that reads, and a connection that a backfill keeps at
each use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
from psycopg import sql

from cdc_core.errors import Retry, WrongServer
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection, source_errors

# Source: PostgreSQL documentation, sections 9.28.4 (recovery) and 9.27.12 (control data).
_SYSTEM_ID = "(select system_identifier::text from pg_control_system())"
_TIMELINE = (
    "case when pg_is_in_recovery() then null"
    " else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int end"
)
# The columns of a query that reads the server's history. The timeline of a standby is NULL.
HISTORY = sql.SQL(f"{_SYSTEM_ID}, {_TIMELINE}")
_IS_THERE = sql.SQL(f"({_SYSTEM_ID}, {_TIMELINE}) = ({{}}, {{}})")


@dataclass(frozen=True, slots=True)
class History:
    """The history that a primary writes; `timeline` is None for a standby, which writes none."""

    system_id: str
    timeline: int | None


# Gives the history that the log holds now; None before the log has an epoch.
FindHistory: TypeAlias = Callable[[], History | None]


def open_primary(
    source: SourceSettings,
    find_history: FindHistory,
    *,
    application_name: str,
    replication: bool = False,
    answer_s: float | None = None,
    lock_s: float | None = None,
) -> psycopg.Connection:
    """Connect as `open_connection` does, and check the server. Raises: WrongServer, SourceError."""
    connection = open_connection(
        source,
        application_name=application_name,
        replication=replication,
        answer_s=answer_s,
        lock_s=lock_s,
    )
    recheck_history(connection, find_history)
    return connection


def read_history(connection: psycopg.Connection) -> History:
    """Read which history the server writes now. Raises: SourceError."""
    with source_errors("read the server's identity"):
        # A walsender takes only simple queries; this is one.
        row = connection.execute(sql.SQL("select {}").format(HISTORY)).fetchone()
    assert row is not None
    return History(*row)


def require_history(
    connection: psycopg.Connection, found: History, expected: History | None
) -> None:
    """Check that a server is the primary and has the expected history. Raises: WrongServer.

    `expected` is None if any history is right. The error is retried, because another try may reach
    another host.
    """
    where = f"{connection.info.host} port {connection.info.port}"
    fix = (
        "name the primary in [source] dsn; if it names several hosts, leave target_session_attrs"
        " out or set it to primary"
    )
    if found.timeline is None:
        raise WrongServer(f"{where} is a standby, expected the primary", fix=fix, retry=Retry.LATER)
    if expected is not None and found != expected:
        raise WrongServer(
            f"{where} has system identifier {found.system_id} and timeline {found.timeline}, the"
            f" log was filled from {expected.system_id} and timeline {expected.timeline}",
            fix=f"{fix}; after a failover, run capture first: it must follow the failover",
            retry=Retry.LATER,
        )


def recheck_history(connection: psycopg.Connection, find_history: FindHistory) -> None:
    """Check again that the server of an open connection is the primary with the log's history.

    A connection that was opened before a failover still answers, from the former primary.
    Raises: WrongServer, SourceError; then the connection is closed.
    """
    try:
        require_history(connection, read_history(connection), find_history())
    except BaseException:
        connection.close()
        raise


def format_history_condition(history: History) -> sql.Composed:
    """An SQL condition that is true only on the server with this history."""
    return _IS_THERE.format(sql.Literal(history.system_id), sql.Literal(history.timeline))
