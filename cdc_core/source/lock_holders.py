"""Adds to an error about a lock the locked tables and the sessions that hold the locks.

The server's own error names no table. A lock request that waits counts, too, because later requests
wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus

from cdc_core.errors import SourceError
from cdc_core.source.connection import source_errors
from cdc_core.vocabulary import TableName

# A message names at most this many.
_NAMED = 5
# Source: PostgreSQL documentation, section 53.12 (pg_locks).
_LOCKED = """
select n.nspname::text, c.relname::text, l.pid
from pg_locks l
join pg_class c on c.oid = l.relation
join pg_namespace n on n.oid = c.relnamespace
where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.pid <> pg_backend_pid()
  and l.database = (select oid from pg_database where datname = current_database())
  and c.relkind in ('r', 'p') and n.nspname !~ '^pg_'
order by 1, 2, 3
"""


@contextmanager
def naming_locked_tables(connection: psycopg.Connection) -> Iterator[None]:
    """Add the locked tables to the error of a statement that waited too long for a lock.

    In an open transaction the error stays as it is: the transaction has failed, so the connection
    can run no query.
    Raises: SourceError.
    """
    try:
        yield
    except SourceError as error:
        is_about_a_lock = isinstance(error.__cause__, psycopg.errors.LockNotAvailable)
        if not is_about_a_lock or connection.info.transaction_status != TransactionStatus.IDLE:
            raise
        with source_errors("look who holds a lock"):
            found = connection.execute(_LOCKED).fetchall()
        if not found:
            raise
        named = [f"{TableName(schema, name)} by PID {pid}" for schema, name, pid in found[:_NAMED]]
        more = f" and {len(found) - _NAMED} others" if len(found) > _NAMED else ""
        raise SourceError(
            f"{error.message}; locked now: {', '.join(named)}{more}",
            fix=error.fix,
            retry=error.retry,
        ) from error.__cause__
