"""Connections that read a published table: to the primary, with a limit to every wait."""

from __future__ import annotations

import psycopg
from psycopg import sql

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import source_errors
from cdc_core.source.primary import FindHistory, open_primary
from cdc_core.source.published_tables import PublishedTable, read_published_tables
from cdc_core.vocabulary import TableName

# The longest time that other sessions wait behind our request for a lock.
_LOCK_S = 5.0
# The server ends a statement that takes longer. The worker waits a little longer for the first row,
# and then closes the connection.
_STATEMENT_S = 600.0
# Between two statements a worker only writes some MB to the spool. If a worker was stopped and is
# idle for longer, the server ends its session, with its lock and its snapshot.
_IDLE_S = 60.0


def _choose_settings() -> sql.Composed:
    """The settings of a session: no parallel plans, and a limit to every wait."""
    return sql.SQL("; ").join(
        sql.SQL("set {} = {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in {
            "lock_timeout": f"{_LOCK_S:g}s",
            "statement_timeout": f"{_STATEMENT_S:g}s",
            "idle_in_transaction_session_timeout": f"{_IDLE_S:g}s",
            "tcp_user_timeout": f"{_IDLE_S:g}s",
            "max_parallel_workers_per_gather": "0",
            "jit": "off",
            "row_security": "off",
        }.items()
    )


def choose_answer_timeout(source: SourceSettings) -> float:
    """Seconds to wait for the first row of a statement."""
    return _STATEMENT_S + source.silence_timeout


def connect_reader(
    source: SourceSettings, table: TableName, *, find_history: FindHistory
) -> tuple[psycopg.Connection, PublishedTable]:
    """Connect to read one published table, with limits to every wait. Raises: SourceError."""
    connection = open_primary(
        source,
        find_history,
        application_name="walgate backfill",
        answer_s=choose_answer_timeout(source),
    )
    try:
        with source_errors(f"read {table}"):
            # Before the first query of the catalog, because such queries take locks, too.
            connection.execute(_choose_settings())
        return connection, find_published(connection, source, table)
    except BaseException:
        connection.close()
        raise


def find_published(
    connection: psycopg.Connection, source: SourceSettings, table: TableName
) -> PublishedTable:
    """Read one table of the publications. Raises: SourceError, also if it is not published."""
    major = connection.info.server_version // 10000
    found = read_published_tables(connection, source.publication, major=major, only=table)
    if not found:
        raise SourceError(
            f"{table} is not in publication {', '.join(source.publication)}",
            fix=f"add it with `walgate publish '{table}'`",
            retry=Retry.AFTER_FIX,
        )
    return found[0]
