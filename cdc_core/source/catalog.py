"""What the stream does not say about a table, read from the catalog.

The catalog may already be newer than the change being decoded: what it and the announcement agree
on (name, type and type modifier) is taken, then what an earlier announcement of the same table
said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg

from cdc_core.protocol.messages import AnnouncedColumn, Announcement
from cdc_core.source.connection import source_errors
from cdc_core.vocabulary import Column, Relation, ReplicaIdentity

# The type below a domain, through domains over domains; only the last has a modifier.
_BASE = """
with recursive domain as (
    select typbasetype, typtypmod, 1 as depth from pg_type where oid = {type} and typtype = 'd'
    union all
    select t.typbasetype, t.typtypmod, depth + 1
    from domain join pg_type t on t.oid = domain.typbasetype and t.typtype = 'd')
select typbasetype::bigint as base_oid, typtypmod as base_modifier
from domain order by depth desc limit 1
"""
# Under a column list a column that is new to the stream may be as old as the table, so that what
# older rows have in it cannot be known (`prattrs` came with version 15).
# Source: PostgreSQL documentation, sections 51.7 (pg_attribute) and 51.26 (pg_index).
_COLUMNS = """
select a.attname, a.attnum, a.atttypid::bigint, a.atttypmod, a.attnotnull,
       format_type(a.atttypid, a.atttypmod),
       case when not c.is_listed then (a.attmissingval::text::text[])[1] end,
       c.is_listed or a.atthasdef or a.attidentity <> '' or a.attgenerated <> '',
       k.ordinal, b.base_oid, coalesce(b.base_modifier, -1)
from pg_attribute a
cross join (select exists (select from pg_publication_rel r where r.prrelid = %(oid)s
                           and to_jsonb(r) ->> 'prattrs' is not null) as is_listed) c
left join (select i.indrelid, u.attnum, u.ordinal::int
           from pg_index i, unnest(i.indkey) with ordinality u(attnum, ordinal)
           where i.indisprimary and i.indrelid = %(oid)s and u.ordinal <= i.indnkeyatts) k
       on k.indrelid = a.attrelid and k.attnum = a.attnum
left join lateral ({base}) b on true
where a.attrelid = %(oid)s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
_TYPE = """
select format_type(%(oid)s, %(modifier)s), b.base_oid, coalesce(b.base_modifier, -1)
from (select) one left join lateral ({base}) b on true
"""
_COLUMNS = _COLUMNS.format(base=_BASE.format(type="a.atttypid"))
_TYPE = _TYPE.format(base=_BASE.format(type="%(oid)s"))


def complete_relation(
    connection: psycopg.Connection, announcement: Announcement, *, previous: Relation | None
) -> Relation:
    """The announced relation with what only the catalog knows. Raises: SourceError."""
    with source_errors(f"read the columns of {announcement.table}"):
        rows = connection.execute(_COLUMNS, {"oid": announcement.oid}).fetchall()
        listed = [
            Column(
                name=name,
                attnum=attnum,
                type_oid=type_oid,
                type_modifier=type_modifier,
                type_name=type_name,
                not_null=not_null,
                key_ordinal=ordinal,
                in_identity=False,
                missing_value=missing_value,
                has_default=has_default,
                base_oid=base_oid,
                base_modifier=base_modifier,
            )
            for (
                name,
                attnum,
                type_oid,
                type_modifier,
                not_null,
                type_name,
                missing_value,
                has_default,
                ordinal,
                base_oid,
                base_modifier,
            ) in rows
        ]
        earlier = () if previous is None else previous.columns
        known = {_shape(column): column for column in (*earlier, *listed)}
        columns = [
            replace(found, in_identity=column.in_identity)
            if (found := known.get(_shape(column))) is not None
            else _column_from_wire(connection, column)
            for column in announcement.columns
        ]
    return Relation(
        oid=announcement.oid,
        table=announcement.table,
        identity=announcement.identity,
        columns=_keep_whole_key(columns, listed, announcement.identity),
    )


def _shape(column: Column | AnnouncedColumn) -> tuple[str, int, int]:
    return column.name, column.type_oid, column.type_modifier


def _column_from_wire(connection: psycopg.Connection, column: AnnouncedColumn) -> Column:
    row = connection.execute(
        _TYPE, {"oid": column.type_oid, "modifier": column.type_modifier}
    ).fetchone()
    type_name, base_oid, base_modifier = row or (None, None, -1)
    return Column(
        name=column.name,
        attnum=None,
        type_oid=column.type_oid,
        type_modifier=column.type_modifier,
        type_name=type_name or "???",
        not_null=False,
        key_ordinal=None,
        in_identity=column.in_identity,
        base_oid=base_oid,
        base_modifier=base_modifier,
    )


def _keep_whole_key(
    columns: Sequence[Column], listed: Sequence[Column], identity: ReplicaIdentity
) -> tuple[Column, ...]:
    """Drop a primary key of the catalog that the announced columns do not carry whole."""
    announced = {c.name for c in columns if c.key_ordinal is not None}
    # A dropped table is in the catalog no more; what was known of it before still holds.
    whole = not listed or announced == {c.name for c in listed if c.key_ordinal is not None}
    if identity is ReplicaIdentity.DEFAULT:
        whole = whole and announced == {c.name for c in columns if c.in_identity}
    return tuple(columns) if whole else tuple(replace(c, key_ordinal=None) for c in columns)
