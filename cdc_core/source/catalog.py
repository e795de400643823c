"""What the stream does not say about a table, read from the catalog.

The catalog may already be newer than the change that is decoded. Walgate takes a column from it
only if name, type and type modifier agree with the announcement; otherwise it uses an earlier
announcement of the same table. The catalog may have changed after the change in a way that leaves
no other trace. Then Walgate marks what it does not know of the column.

A transaction with a smaller xid may commit later than one with a larger xid, so xids alone do not
show which transaction committed first. All transactions below the slot's `catalog_xmin` had ended
before any change that the slot still sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg

from cdc_core.protocol.messages import AnnouncedColumn, Announcement
from cdc_core.source.connection import source_errors
from cdc_core.vocabulary import Column, Relation, ReplicaIdentity

# The type below a domain, or below domains over domains. Only the last domain has a modifier.
_BASE = """
with recursive domain as (
    select typbasetype, typtypmod, 1 as depth from pg_type where oid = {type} and typtype = 'd'
    union all
    select t.typbasetype, t.typtypmod, depth + 1
    from domain join pg_type t on t.oid = domain.typbasetype and t.typtype = 'd')
select typbasetype::bigint as base_oid, typtypmod as base_modifier
from domain order by depth desc limit 1
"""
# With a column list, a column that is new to the stream may be as old as the table. Then nobody
# knows what older rows have in it. Version 15 brought column lists, and `prattrs`.
# A partitioned table has no rows. What older rows have in a new column is in the catalog rows of
# its partitions. The query finds them by pg_inherits: pg_partition_tree would lock each of them,
# and so wait for an ALTER of one.
# `newest` is the age of the oldest transaction that may have committed after the one in the stream.
# The transaction that made the table also made its column `ctid`. It had committed before any other
# transaction could change a row.
# Source: PostgreSQL documentation, sections 51.7 (pg_attribute), 51.26 (pg_index) and 52.20
# (pg_replication_slots).
_COLUMNS = """
with recursive part as (
    select oid from pg_class where oid = %(oid)s and (relkind = 'p' or relispartition)
    union all
    select i.inhrelid from part join pg_inherits i on i.inhparent = part.oid)
select a.attname, a.attnum, a.atttypid::bigint, a.atttypmod, a.attnotnull,
       format_type(a.atttypid, a.atttypmod),
       case when not c.is_listed then coalesce(array_to_string(a.attmissingval, ''), m.value) end,
       c.is_listed or a.atthasdef or a.attidentity <> '' or a.attgenerated <> '' or m.is_any,
       k.ordinal, b.base_oid, coalesce(b.base_modifier, -1), a.xmin::text::bigint,
       n.is_newer, a.attgenerated <> '', n.is_newer and exists (
           select from pg_attribute d
           where d.attrelid = a.attrelid and d.attisdropped and d.attnum between 1 and a.attnum
             and age(d.xmin) between 0 and s.newest),
       ({storage}), (select relnatts from pg_class where oid = a.attrelid)
from pg_attribute a
cross join (
    select age(%(xid)s::text::xid) as own,
           greatest(age(%(xid)s::text::xid), (select age(catalog_xmin) from pg_replication_slots
                                              where slot_name = %(slot)s)) as newest,
           (select xmin from pg_attribute where attrelid = %(oid)s and attname = 'ctid') as made) s
cross join lateral (
    select coalesce(age(a.xmin) between 0 and case when a.xmin = s.made then s.own
                                                   else s.newest end, false) as is_newer) n
cross join (select exists (select from pg_publication_rel r where r.prrelid = %(oid)s
                           and to_jsonb(r) ->> 'prattrs' is not null) as is_listed) c
left join (select i.indrelid, u.attnum, u.ordinal::int
           from pg_index i, unnest(i.indkey) with ordinality u(attnum, ordinal)
           where i.indisprimary and i.indrelid = %(oid)s and u.ordinal <= i.indnkeyatts) k
       on k.indrelid = a.attrelid and k.attnum = a.attnum
left join lateral ({base}) b on true
cross join lateral (
    select case when min(value) = max(value) then min(value) end as value, count(*) > 0 as is_any
    from (select array_to_string(p.attmissingval, '') collate "C" as value
          from part join pg_attribute p on p.attrelid = part.oid and p.attname = a.attname
          where p.atthasmissing) part) m
where a.attrelid = %(oid)s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
# The sum of the file numbers of the table and of its partitions, over files that a rewrite made; 0
# if no file was ever rewritten. A rewrite changes values without row changes in the stream:
# ALTER … TYPE … USING, or a default that differs by row. One statement reads files and columns.
# Between two statements an ALTER could change both, and the result would show only one change.
_STORAGE = """
with recursive part as (
    select %(oid)s::bigint::oid as oid
    union all
    select i.inhrelid from part join pg_inherits i on i.inhparent = part.oid
    join pg_class c on c.oid = i.inhrelid and c.relispartition)
select coalesce(sum(c.relfilenode::bigint), 0)::bigint
from part join pg_class c on c.oid = part.oid where c.relkind = 'r' and c.relfilenode <> c.oid
"""
_TYPE = """
select format_type(%(oid)s, %(modifier)s), b.base_oid, coalesce(b.base_modifier, -1)
from (select) one left join lateral ({base}) b on true
"""
_COLUMNS = _COLUMNS.format(base=_BASE.format(type="a.atttypid"), storage=_STORAGE)
_TYPE = _TYPE.format(base=_BASE.format(type="%(oid)s"))


def complete_relation(
    connection: psycopg.Connection,
    announcement: Announcement,
    *,
    previous: Relation | None,
    xid: int | None = None,
    slot: str | None = None,
) -> Relation:
    """Complete the relation that transaction `xid` announced, from the catalog.

    If `xid` is None, the relation is what the catalog says now. Raises: SourceError.
    """
    table = {"oid": announcement.oid, "xid": None if xid is None else str(xid), "slot": slot}
    with source_errors(f"read the columns of {announcement.table}"):
        rows = connection.execute(_COLUMNS, table).fetchall()
        storage, width = rows[0][-2:] if rows else (0, None)
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
                # A rewrite may have come before the first announcement of the table.
                catalog_xid=None if previous is None and storage and is_newer else catalog_xid,
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
                catalog_xid,
                is_newer,
                *_,
            ) in rows
        ]
        earlier = () if previous is None else previous.columns
        # A column that may have been dropped and added again: either may be the announced one.
        doubtful = {row[0] for row in rows if row[-3]} - {column.name for column in earlier}
        listed = [
            replace(c, attnum=None, missing_value=None) if c.name in doubtful else c for c in listed
        ]
        sent = [
            replace(c, hashed_by=None, missing_value=None) if c.hashed_by else c for c in earlier
        ]
        known = {_shape(column): column for column in (*sent, *listed)}
        columns = [
            replace(found, in_identity=column.in_identity)
            if (found := known.get(_shape(column))) is not None
            else _column_from_wire(connection, column)
            for column in announcement.columns
        ]
    announced = {column.name for column in columns}
    unseen = {row[0] for row in rows if not row[-4]} - announced
    is_same = previous is not None and previous.storage == storage
    if previous is not None and storage and not is_same:
        columns = _doubt_new_columns(columns, {column.name for column in earlier})
    relation = Relation(
        oid=announcement.oid,
        table=announcement.table,
        identity=announcement.identity,
        columns=_keep_whole_key(columns, listed, announcement.identity),
        # If the catalog has a column that was not announced yet, the number of the files does not
        # show what older rows have in it.
        storage=storage if is_same or not storage or not unseen else None,
        width=width,
    )
    return relation.after(previous)


def _doubt_new_columns(columns: Sequence[Column], known: set[str]) -> list[Column]:
    """Mark each new column whose value in older rows the catalog does not show."""
    return [
        replace(column, has_default=True)
        if column.name not in known and column.missing_value is None
        else column
        for column in columns
    ]


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
    """Return the columns, without the primary key unless the announcement has all of it."""
    announced = {c.name for c in columns if c.key_ordinal is not None}
    # The catalog does not show a dropped table. The earlier columns are still right.
    whole = not listed or announced == {c.name for c in listed if c.key_ordinal is not None}
    if identity is ReplicaIdentity.DEFAULT:
        whole = whole and announced == {c.name for c in columns if c.in_identity}
    return tuple(columns) if whole else tuple(replace(c, key_ordinal=None) for c in columns)
