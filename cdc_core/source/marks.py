"""Writes marks into the source's WAL; reads its current LSN, transaction ids and snapshots."""

from __future__ import annotations

import psycopg
from psycopg import sql

from cdc_core.source.connection import source_errors
from cdc_core.source.primary import (
    History,
    format_history_condition,
    read_history,
    require_history,
)
from cdc_core.vocabulary import MARK_PREFIX, Lsn


def emit_mark(connection: psycopg.Connection, detail: str, *, on: History | None = None) -> None:
    """Write a mark into the WAL; the stream carries it at this place. Raises: SourceError.

    `on` is the history that the mark belongs to. A server with another history writes nothing, and
    the call raises WrongServer. The mark is transactional, so it has a place among the commits and
    lets the server release WAL.
    Source: PostgreSQL documentation, section 9.28.6, pg_logical_emit_message.
    """
    with source_errors("emit a mark"):
        emit = sql.SQL("select pg_logical_emit_message(true, {}, {}) where {}").format(
            sql.Literal(MARK_PREFIX),
            sql.Literal(detail),
            sql.SQL("true") if on is None else format_history_condition(on),
        )
        is_written = connection.execute(emit).fetchone() is not None
    if not is_written:
        require_history(connection, read_history(connection), on)


def read_current_lsn(connection: psycopg.Connection) -> Lsn:
    """Read the LSN up to which the server has written WAL. Raises: SourceError."""
    with source_errors("read the current LSN"):
        row = connection.execute("select pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def take_xid(connection: psycopg.Connection) -> int:
    """Take a transaction id, larger than every one taken before. Raises: SourceError.

    Source: PostgreSQL documentation, section 9.27.10, pg_current_xact_id.
    """
    with source_errors("take a transaction id"):
        row = connection.execute("select pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(row[0])


def read_snapshot(connection: psycopg.Connection) -> str:
    """Read which transactions are visible now, in PostgreSQL's text form. Raises: SourceError."""
    with source_errors("read the current snapshot"):
        row = connection.execute("select pg_current_snapshot()::text").fetchone()
    assert row is not None
    return str(row[0])
