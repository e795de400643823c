"""Makes publication and slot, in that order, and nothing else in the source.

The order matters: a slot cannot read changes older than its publication. So if the role may not
make the publication, Walgate does not make the slot either, and gives the SQL for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import source_errors
from cdc_core.vocabulary import TableName

# A new slot waits for every open transaction. A forgotten one must not block us without limit.
SLOT_TIMEOUT_S = 60

# Ordinary tables, and roots of partitioned tables, that have a key by which the stream can identify
# rows, and whose own UPDATE does not fail once they are published. The stream cannot use a
# generated key, and can use a deferrable one only under replica identity full. Version 18 refuses
# to update a table of replica identity full with generated columns that are not sent.
_KEYED_TABLES = """
select n.nspname::text, c.relname::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
  and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
  and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass
                  and d.objid = c.oid and d.deptype = 'e')
  and exists (select from pg_index i where i.indrelid = c.oid and i.indisvalid
              and case c.relreplident when 'i' then i.indisreplident when 'n' then false
                  when 'f' then i.indisprimary else i.indisprimary and i.indimmediate end
              and not exists (select from pg_attribute a where a.attrelid = c.oid
                              and a.attnum = any(i.indkey) and a.attgenerated <> ''))
  and not (c.relreplident = 'f' and current_setting('server_version_num')::int >= 180000
           and exists (select from pg_attribute a where a.attrelid = c.oid
                       and a.attgenerated <> '' and not a.attisdropped))
order by 1, 2
"""


@dataclass(frozen=True, slots=True)
class Creation:
    """The names of what was made, and the SQL for what the role may not make."""

    made: tuple[str, ...]
    refused: tuple[str, ...]


def list_keyed_tables(connection: psycopg.Connection) -> list[TableName]:
    """List the tables of this database that can be replicated as they are. Raises: SourceError."""
    with source_errors("list the tables with a key"):
        return [TableName(*row) for row in connection.execute(_KEYED_TABLES)]


def create_replication(
    connection: psycopg.Connection, source: SourceSettings, tables: Sequence[TableName]
) -> Creation:
    """Make the first publication and the slot if they are missing; leave existing ones as they are.

    Further publications are the operator's own. Raises: SourceError.
    """
    made: list[str] = []
    statements = _missing_statements(connection, source, tables)
    for index, (name, statement) in enumerate(statements):
        try:
            with source_errors(f"create {name}"):
                _run(connection, statement)
        except Exception as error:
            if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            left = [s.as_string(connection) + ";" for _, s in statements[index:]]
            return Creation(tuple(made), tuple(left))
        made.append(name)
    return Creation(tuple(made), ())


def make_slot_statement(name: str) -> sql.Composed:
    """The SQL that makes a slot."""
    return sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput')").format(
        sql.Literal(name)
    )


def _missing_statements(
    connection: psycopg.Connection, source: SourceSettings, tables: Sequence[TableName]
) -> list[tuple[str, sql.Composed]]:
    publication = source.publication[0]
    found: list[tuple[str, sql.Composed]] = []
    with source_errors("look for publication and slot"):
        row = connection.execute(
            "select exists (select from pg_publication where pubname = %s),"
            " exists (select from pg_replication_slots where slot_name = %s)",
            (publication, source.slot),
        ).fetchone()
    assert row is not None
    has_publication, has_slot = row
    if not has_publication:
        if not tables:
            raise SourceError(
                "no table of the database has a key: expected at least one, found none",
                fix="add primary keys, or name the database that holds the tables in the DSN",
                retry=Retry.AFTER_FIX,
            )
        names = sql.SQL(", ").join(sql.Identifier(table.schema, table.name) for table in tables)
        create = sql.SQL(
            "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
        ).format(sql.Identifier(publication), names)
        found.append((f"publication {publication}", create))
    if not has_slot:
        found.append((f"slot {source.slot}", make_slot_statement(source.slot)))
    return found


def _run(connection: psycopg.Connection, statement: sql.Composed) -> None:
    connection.execute(
        sql.SQL("set statement_timeout = {}").format(sql.Literal(f"{SLOT_TIMEOUT_S}s"))
    )
    try:
        connection.execute(statement)
    finally:
        connection.execute("reset statement_timeout")
