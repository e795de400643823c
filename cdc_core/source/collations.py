"""Describes the order in which the server sorts texts now: collation, and version of its rules.

A range of keys has a meaning in one order only. ALTER COLUMN … TYPE … COLLATE gives a key another
order without a rewrite of the table. An upgrade of ICU or of the C library changes the order
without any statement.
"""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from cdc_core.source.connection import source_errors

# The name is for a person. A collation that is made again under its name gets another number.
# A database names its locale `daticulocale` in versions 15 and 16, and `datlocale` later.
# Source: PostgreSQL documentation, sections 52.12 (pg_collation), 52.15 (pg_database), 9.28.
_COLLATIONS = """
select c.oid::bigint, format('collate %%I (%%s)', c.collname, concat_ws(', ', c.oid,
    case when c.collprovider = 'd'
         then concat_ws(', ', d.datcollate, to_jsonb(d) ->> 'datlocprovider',
                        coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale'),
                        {own_version})
         else pg_collation_actual_version(c.oid) end))
from pg_collation c join pg_database d on d.datname = current_database()
where c.oid = any(%s)
"""
# Version 15 began to report the version of a database's own locale.
_REPORTED_SINCE = 15
_BY_REPORT = _COLLATIONS.format(own_version="pg_database_collation_actual_version(d.oid)")
# Before, each locale of the C library has the version of the library, except those of byte order.
_BY_LIBRARY = _COLLATIONS.format(
    own_version="(select pg_collation_actual_version(l.oid) from pg_collation l"
    " where l.collprovider = 'c' and l.collcollate !~* '^(c|posix)($|[.])' limit 1)"
)


def describe_collations(
    connection: psycopg.Connection, collations: Collection[int]
) -> dict[int, str]:
    """Describe each collation by name, number and version; the result is keyed by number.

    Runs no query if `collations` is empty. Raises: SourceError.
    """
    if not collations:
        return {}
    is_reported = connection.info.server_version // 10_000 >= _REPORTED_SINCE
    numbers = (sorted(collations),)
    with source_errors("read the collations"):
        if is_reported:
            rows = connection.execute(_BY_REPORT, numbers).fetchall()
        else:
            rows = connection.execute(_BY_LIBRARY, numbers).fetchall()
    return dict(rows)
