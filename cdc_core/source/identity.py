"""Reads what every role may read: the server's identity, its LSN, and the published tables."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from cdc_core.source.connection import source_errors
from cdc_core.source.lock_holders import naming_locked_tables
from cdc_core.vocabulary import Lsn, TableName

_IDENTITY = """
select (select system_identifier::text from pg_control_system()),
       current_setting('server_version'),
       case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
            else pg_current_wal_lsn() end::text,
       case when pg_is_in_recovery() then (select timeline_id from pg_control_checkpoint())
            else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int end
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """The history that the server's LSNs belong to, and its newest LSN."""

    system_id: str
    version: str
    current: Lsn
    timeline: int


def read_identity(connection: psycopg.Connection) -> Identity:
    """Read the server's identity. Raises: SourceError."""
    with source_errors("read the server's identity"):
        row = connection.execute(_IDENTITY).fetchone()
    assert row is not None
    system_id, version, current, timeline = row
    return Identity(system_id, version, Lsn.parse(current), timeline)


def list_published_tables(
    connection: psycopg.Connection, publications: tuple[str, ...]
) -> list[TableName]:
    """List the tables that the publications hold now, in order of name. Raises: SourceError.

    From version 16 on the server locks each of these tables for the query. If a lock is not free in
    time, the error names the locked tables.
    """
    with naming_locked_tables(connection), source_errors("list the published tables"):
        rows = connection.execute(
            "select distinct schemaname::text, tablename::text from pg_publication_tables"
            " where pubname = any(%s) order by 1, 2",
            (list(publications),),
        ).fetchall()
    return [TableName(*row) for row in rows]
