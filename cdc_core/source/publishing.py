"""Adds tables to the publication so that no writer's changes are lost.

The stream does not have what a transaction wrote before ADD TABLE, even if it commits later, and a
chunk that is read before that commit does not have it either (seen on 15, 17 and 18). So the
transaction that adds the tables first locks them against writers. The lock waits, for a bounded
time, for the writers that are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import source_errors
from cdc_core.source.creation import list_keyed_tables
from cdc_core.source.lock_holders import naming_locked_tables
from cdc_core.table_patterns import TablePattern
from cdc_core.vocabulary import TableName

# The longest time that our lock request waits: writers of the tables wait behind it.
LOCK_TIMEOUT_S = 5

_TABLES = """
select n.nspname::text, c.relname::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p'
  and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
order by 1, 2
"""
_STATE = """
select exists (select from pg_publication where pubname = %(publication)s),
       exists (select from pg_replication_slots where slot_name = %(slot)s),
       coalesce((select puballtables from pg_publication where pubname = %(publication)s), false)
"""
_PUBLISHED = """
select schemaname::text, tablename::text from pg_publication_tables where pubname = %s
"""
# The sessions that hold a lock for writing on one of these tables.
_WRITERS = """
select distinct a.pid, coalesce(a.application_name, '')
from pg_locks l join pg_stat_activity a on a.pid = l.pid
where l.granted and l.pid <> pg_backend_pid()
  and l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock',
                 'ExclusiveLock', 'AccessExclusiveLock')
  and l.relation = any(%s::text[]::regclass[])
order by 1
"""


@dataclass(frozen=True, slots=True)
class Publishing:
    """The statements to run in one transaction; none if there is nothing to add.

    `keyless` are unpublished tables that a pattern names and `list_keyed_tables` does not. They are
    left out: once a table without a key is published, the source's own UPDATE and DELETE on it
    fail.
    """

    statements: tuple[sql.Composed, ...]
    added: tuple[TableName, ...]
    keyless: tuple[TableName, ...]


def plan_publishing(
    connection: psycopg.Connection, source: SourceSettings, patterns: Sequence[TablePattern]
) -> Publishing:
    """Plan to add the tables that the patterns name to the first publication.

    The plan makes that publication if it is missing. Raises: SourceError if a pattern names no
    table, if an exact pattern names a table without a key, or if the slot exists and the
    publication does not.
    """
    name = source.publication[0]
    with (
        naming_locked_tables(connection),
        source_errors("look at the tables and the publication"),
    ):
        tables = [TableName(*row) for row in connection.execute(_TABLES)]
        row = connection.execute(_STATE, {"publication": name, "slot": source.slot}).fetchone()
        published = {TableName(*row) for row in connection.execute(_PUBLISHED, (name,))}
    assert row is not None
    has_publication, has_slot, has_all = row
    keyed = set(list_keyed_tables(connection))
    _require_tables(patterns, tables, keyed)
    named = [table for table in tables if any(p.matches(table) for p in patterns)]
    added = [table for table in named if table in keyed and table not in published and not has_all]
    keyless = tuple(table for table in named if table not in keyed | published)
    if not added:
        return Publishing((), (), keyless)
    if not has_publication and has_slot:
        raise SourceError(
            f"publication {name} does not exist and slot {source.slot} does: the slot cannot read"
            " changes that are older than its publication",
            fix="if nothing is staged yet, drop the slot, then run `walgate init --create`",
            retry=Retry.AFTER_FIX,
        )
    identifiers = sql.SQL(", ").join(sql.Identifier(t.schema, t.name) for t in added)
    publication = sql.Identifier(name)
    if has_publication:
        alter = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(publication, identifiers)
    else:
        alter = sql.SQL(
            "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
        ).format(publication, identifiers)
    statements = (
        sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{LOCK_TIMEOUT_S}s")),
        sql.SQL("LOCK TABLE {} IN SHARE MODE").format(identifiers),
        alter,
    )
    return Publishing(statements, tuple(added), keyless)


def publish(connection: psycopg.Connection, plan: Publishing) -> bool:
    """Run the plan; False if the role may not do so. Raises: SourceError."""
    try:
        with source_errors("publish the tables"), connection.transaction():
            # Writers wait behind the lock. If this process is stopped, the server ends its session.
            connection.execute(
                f"SET LOCAL idle_in_transaction_session_timeout = '{LOCK_TIMEOUT_S}s'"
            )
            for statement in plan.statements:
                connection.execute(statement)
    except SourceError as error:
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            return False
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise SourceError(
                f"writers kept {', '.join(map(str, plan.added))} locked for {LOCK_TIMEOUT_S} s:"
                f" {_name_writers(connection, plan.added)}; nothing was changed",
                fix="wait until their transactions have ended, or end them, and try again",
                retry=Retry.LATER,
            ) from error
        raise
    return True


def _require_tables(
    patterns: Sequence[TablePattern], tables: Sequence[TableName], keyed: set[TableName]
) -> None:
    """Refuse patterns that name no table, and exact names of tables without a key."""
    for pattern in patterns:
        named = [table for table in tables if pattern.matches(table)]
        if not named:
            raise SourceError(
                f"{pattern.text} names no table of this database",
                fix='name tables as the catalog spells them: public.orders, public.*, "Odd"."T"',
                retry=Retry.AFTER_FIX,
            )
        if pattern.is_exact and not keyed.intersection(named):
            raise SourceError(
                f"{named[0]} cannot be published: it has no key, or is a partition; the source's"
                " own UPDATE and DELETE would fail on a table without a key",
                fix="add a primary key, or name the partitioned table",
                retry=Retry.AFTER_FIX,
            )


def _name_writers(connection: psycopg.Connection, tables: Sequence[TableName]) -> str:
    names = [sql.Identifier(t.schema, t.name).as_string(connection) for t in tables]
    with source_errors("look for the writers"):
        writers = connection.execute(_WRITERS, (names,)).fetchall()
    return ", ".join(f"PID {pid} ({name or 'no name'})" for pid, name in writers) or "none is left"
