"""The source as it was at one LSN: an exported snapshot with the LSN that it is consistent at.

The creation of a temporary logical slot exports a snapshot. The snapshot has exactly the
transactions that end at or below the slot's consistent point. The slot exists for seconds. Its
creation waits for every transaction that was open at its start. Walgate locks the tables first: a
rewrite between snapshot and read would make the read empty. The lock is the weakest one: no reader
and no writer waits for it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg
from psycopg import sql

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import LOCK_S, source_errors
from cdc_core.source.primary import FindHistory, History, open_primary, read_history
from cdc_core.source.published_tables import PublishedTable, read_published_tables
from cdc_core.vocabulary import Lsn, TableName

_NAME = "walgate verify"
_POLL_S = 0.1
_CANCEL_S = 10.0
# No parallel workers and no JIT. Other sessions wait behind our lock request for `lock_timeout` at
# most, and no statement of ours runs for longer than `statement_timeout`.
_SETTINGS = {
    "lock_timeout": "5s",
    "statement_timeout": "30min",
    # Spark may fold for a long time between two statements. If the session is idle for longer, for
    # example because the process was stopped, the server ends it.
    "idle_in_transaction_session_timeout": "2h",
    "tcp_user_timeout": "2min",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "row_security": "off",
}
_BLOCKERS = """
select a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, ''), a.state,
       extract(epoch from clock_timestamp() - a.xact_start)::int
from pg_stat_activity a where a.pid = any(pg_blocking_pids(%s))
"""
_OLDEST = """
select a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, ''), a.state,
       extract(epoch from clock_timestamp() - a.xact_start)::int
from pg_stat_activity a where a.backend_xid is not null and a.pid <> pg_backend_pid()
order by a.xact_start limit 1
"""


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """What one connection sees of published tables: all transactions that end at or below `lsn`.

    `refused` has the reason for each table that cannot be read. `history` is the server's.
    """

    lsn: Lsn
    history: History
    connection: psycopg.Connection
    published: Mapping[TableName, PublishedTable]
    refused: Mapping[TableName, SourceError]


@contextmanager
def open_snapshot(
    source: SourceSettings,
    tables: Sequence[TableName],
    *,
    find_history: FindHistory,
    patience_s: float,
    stop: threading.Event,
) -> Iterator[SourceSnapshot]:
    """Lock tables and show them as of one LSN until the block ends.

    Each connection must reach the primary that has the history of the log.
    Raises: WrongServer, SourceError.
    """
    opened = partial(open_primary, source, find_history, application_name=_NAME)
    with closing(opened()) as reader, closing(opened(lock_s=LOCK_S)) as watcher:
        history = read_history(reader)
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.read_only = True
        found = _find_published(watcher, source)
        with source_errors("read the source"), reader.transaction():
            for name, value in _SETTINGS.items():
                reader.execute(f"set local {name} = '{value}'".encode())
            refused = _lock(reader, [found[table] for table in tables if table in found])
            with _exporting(opened, watcher, patience_s=patience_s, stop=stop) as (lsn, snapshot):
                reader.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
                # The definitions of the tables are of the same moment as their rows.
                seen = _find_published(reader, source)
            locked = {table: seen[table] for table in seen if table in found}
            yield SourceSnapshot(lsn, history, reader, locked, refused)


def _find_published(
    connection: psycopg.Connection, source: SourceSettings
) -> dict[TableName, PublishedTable]:
    major = connection.info.server_version // 10000
    found = read_published_tables(connection, source.publication, major=major)
    return {published.table: published for published in found}


def _lock(
    connection: psycopg.Connection, tables: Sequence[PublishedTable]
) -> dict[TableName, SourceError]:
    """Lock the tables in order of name; return the error of each that could not be locked."""
    refused: dict[TableName, SourceError] = {}
    for published in sorted(tables, key=lambda published: published.table):
        lock = sql.SQL("lock table {} in access share mode").format(published.rows_of)
        try:
            with source_errors(f"lock {published.table}"), connection.transaction():
                connection.execute(lock)
        except SourceError as error:
            if connection.closed:
                raise
            refused[published.table] = error
    return refused


@contextmanager
def _exporting(
    opened: Callable[..., psycopg.Connection],
    watcher: psycopg.Connection,
    *,
    patience_s: float,
    stop: threading.Event,
) -> Iterator[tuple[Lsn, str]]:
    """Export a snapshot that can be imported until the block ends; give its LSN and name."""
    walsender = opened(replication=True)
    with closing(walsender), ThreadPoolExecutor(1, "walgate-snapshot") as pool:
        name = f"walgate_verify_{uuid.uuid4().hex[:16]}"
        create = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        made = pool.submit(lambda: walsender.execute(create.encode()).fetchone())
        try:
            _await(made, walsender, watcher, patience_s=patience_s, stop=stop)
        except BaseException:
            # The server removes the temporary slot, if it was made, with the connection.
            walsender.cancel_safe(timeout=_CANCEL_S)
            raise
        with source_errors("export a snapshot"):
            row = made.result()
        assert row is not None
        yield Lsn.parse(row[1]), str(row[2])


def _await(
    made: Future[tuple[object, ...] | None],
    walsender: psycopg.Connection,
    watcher: psycopg.Connection,
    *,
    patience_s: float,
    stop: threading.Event,
) -> None:
    """Wait for the slot. Raises: SourceError, which names the transactions that it waits for."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            made.exception(_POLL_S)
        except NotYetError:
            if stop.is_set() or time.monotonic() > deadline:
                waiting_for = _name_blocker(watcher, walsender.info.backend_pid)
                raise SourceError(
                    f"no snapshot of the source within {patience_s:g} s: the server waits for every"
                    f" transaction that was open at the request, {waiting_for}",
                    fix="end that transaction, or try again after its end",
                    retry=Retry.LATER,
                ) from None
        else:
            return


def _name_blocker(watcher: psycopg.Connection, walsender: int) -> str:
    with source_errors("see what is waited for"):
        found = watcher.execute(_BLOCKERS, (walsender,)).fetchall()
        found = found or watcher.execute(_OLDEST).fetchall()
    named = [f"PID {pid} ({who}, {state}, open for {age} s)" for pid, who, state, age in found]
    return "now " + ", ".join(named) if named else "now none that this role may see"
