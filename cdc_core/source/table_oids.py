"""Reads the present names of tables by oid: a table keeps its oid when it is renamed."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from cdc_core.source.connection import source_errors
from cdc_core.vocabulary import TableName

_NAMES = """
select c.oid::bigint, n.nspname::text, c.relname::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p')
  and (c.oid = any(%s::oid[])
       or (n.nspname::text, c.relname::text) in (select * from unnest(%s::text[], %s::text[])))
"""


def read_names(
    connection: psycopg.Connection, known: Mapping[TableName, int]
) -> dict[int, TableName]:
    """Read the tables that have the oid or the name of a known one, by oid. Raises: SourceError."""
    if not known:
        return {}
    schemas, tables = [name.schema for name in known], [name.name for name in known]
    with source_errors("look for tables that were renamed"):
        found = connection.execute(_NAMES, (list(known.values()), schemas, tables)).fetchall()
    return {oid: TableName(schema, name) for oid, schema, name in found}
