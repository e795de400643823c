"""A published table as the catalogs show it: identity, indexes, columns, what is sent of it.

Reads only what every role may read. It does not judge: table_problems.py finds what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from cdc_core.source.connection import source_errors
from cdc_core.source.lock_holders import naming_locked_tables
from cdc_core.vocabulary import ReplicaIdentity, TableName

# Publications can have column lists and row filters, and generated columns, since these versions.
_LISTS_SINCE = 15
_GENERATED_SINCE = 18

# The names of the columns that PostgreSQL sends of a partition's old rows.
_IDENTITY_OF_LEAF = """
(select array_agg(a.attname::text) from pg_attribute a
 where a.attrelid = leaf.oid and a.attnum > 0 and not a.attisdropped
   and case leaf.relreplident when 'n' then false when 'f' then a.attgenerated = ''
       else exists (select from pg_index i
                    where i.indrelid = leaf.oid and i.indisvalid and i.indimmediate
                      and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
                      and case leaf.relreplident when 'i' then i.indisreplident
                          else i.indisprimary end) end)
"""
_TABLES = """
with published as (
  select schemaname, tablename,
         jsonb_agg(jsonb_build_array(pubname, {columns}, {filter}) order by pubname) as carriages
  from pg_publication_tables where pubname = any({names}) {only} group by schemaname, tablename
)
select p.schemaname::text, p.tablename::text, p.carriages, c.relkind::text, c.relreplident::text,
       has_schema_privilege(n.oid, 'usage') and (has_table_privilege(c.oid, 'select')
         or has_any_column_privilege(c.oid, 'select')),
       row_security_active(c.oid),
       (select jsonb_agg(jsonb_build_array(a.attname, a.attnum, a.attnotnull,
                                           a.attgenerated)
                         order by a.attnum)
        from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
       (select jsonb_agg(jsonb_build_array(x.relname, i.indisprimary, i.indisreplident,
                 i.indimmediate, i.indpred is null and i.indexprs is null,
                 (select jsonb_agg(a.attname order by u.place)
                  from unnest((i.indkey::int2[])[0:i.indnkeyatts - 1])
                       with ordinality u(attnum, place)
                  join pg_attribute a on a.attrelid = c.oid and a.attnum = u.attnum))
                 order by x.relname)
        from pg_index i join pg_class x on x.oid = i.indexrelid
        where i.indrelid = c.oid and i.indisunique and i.indisvalid),
       {filter_columns},
       case when c.relispartition then
         (select root.oid::regclass::text from pg_partition_ancestors(c.oid) a
          join pg_class root on root.oid = a.relid where not root.relispartition) end,
       case when c.relkind = 'p' then
         (select jsonb_agg(jsonb_build_array(leaf.relnamespace::regnamespace::text,
                   leaf.relname, {identity_of_leaf}))
          from pg_partition_tree(c.oid) part join pg_class leaf on leaf.oid = part.relid
          where part.isleaf and part.relid <> c.oid) end,
       c.relkind <> 'p' and exists (select from pg_inherits h where h.inhparent = c.oid)
from published p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
order by 1, 2
"""
# The columns that a row filter uses: the filter's parsed form has their numbers.
_FILTER_COLUMNS = """
(select array_agg(distinct a.attname::text)
 from pg_publication_rel r join pg_publication q on q.oid = r.prpubid,
      regexp_matches(r.prqual::text, ':varattno ([0-9]+)', 'g') as used,
      pg_attribute a
 where r.prrelid = c.oid and q.pubname = any({names}) and (q.pubupdate or q.pubdelete)
   and a.attrelid = c.oid and a.attnum = used[1]::int)
"""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column; `generated` is empty, `s` (stored) or `v` (virtual)."""

    name: str
    attnum: int
    not_null: bool
    generated: str


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A valid unique index; `columns` are in index order.

    `is_plain` if it has neither predicate nor expressions.
    """

    name: str
    is_primary: bool
    is_identity: bool
    is_immediate: bool
    is_plain: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublicationEntry:
    """The columns and rows of the table that one publication sends; None means all.

    From version 15 on the columns are always named.
    """

    publication: str
    columns: tuple[str, ...] | None
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that at least one of the publications holds.

    `leaves` are the partitions without partitions of their own, each with the columns that
    PostgreSQL sends of its old rows. `root` is the topmost table that this one is a partition of.
    """

    schema: str
    name: str
    carriages: tuple[PublicationEntry, ...]
    kind: str
    identity: ReplicaIdentity
    is_readable: bool
    is_row_secured: bool
    columns: tuple[TableColumn, ...]
    indexes: tuple[UniqueIndex, ...]
    filter_columns: frozenset[str]
    root: str | None
    leaves: tuple[tuple[TableName, frozenset[str]], ...]
    has_children: bool
    excluded: frozenset[str] = field(default=frozenset())

    @property
    def table(self) -> TableName:
        """The table's name."""
        return TableName(self.schema, self.name)

    @property
    def identifier(self) -> sql.Identifier:
        """The table's name as an SQL identifier."""
        return sql.Identifier(self.schema, self.name)

    @property
    def rows_of(self) -> sql.Composed:
        """What a SELECT reads: the table with its partitions, not tables that inherit from it."""
        return sql.SQL("{}{}").format(sql.SQL("" if self.kind == "p" else "ONLY "), self.identifier)

    @property
    def row_filter(self) -> sql.Composed | None:
        """The condition of the rows that any publication sends; None if one sends all rows."""
        filters = [carriage.row_filter for carriage in self.carriages if carriage.row_filter]
        if len(filters) < len(self.carriages):
            return None
        return sql.SQL("({})").format(sql.SQL(" OR ").join(sql.SQL(f"({one})") for one in filters))

    @property
    def publications(self) -> list[str]:
        """The names of the publications that hold the table."""
        return [carriage.publication for carriage in self.carriages]

    @property
    def generated(self) -> frozenset[str]:
        """The names of the generated columns."""
        return frozenset(column.name for column in self.columns if column.generated)

    @property
    def primary_key(self) -> UniqueIndex | None:
        """The index of the primary key, deferrable or not."""
        return next((index for index in self.indexes if index.is_primary), None)

    @property
    def identity_index(self) -> UniqueIndex | None:
        """The index that identifies old rows; None without one, or if it is deferrable."""
        match self.identity:
            case ReplicaIdentity.DEFAULT:
                chosen = self.primary_key
            case ReplicaIdentity.INDEX:
                chosen = next((index for index in self.indexes if index.is_identity), None)
            case ReplicaIdentity.FULL | ReplicaIdentity.NOTHING:
                chosen = None
        return chosen if chosen and chosen.is_immediate else None

    @property
    def identity_columns(self) -> frozenset[str]:
        """The columns that PostgreSQL sends of old rows; empty if rows cannot be identified."""
        if self.identity is ReplicaIdentity.FULL:
            return frozenset(column.name for column in self.columns) - self.generated
        return frozenset(self.identity_index.columns if self.identity_index else ())

    @property
    def key_index(self) -> UniqueIndex | None:
        """The index of the columns by which rows are merged."""
        is_full = self.identity is ReplicaIdentity.FULL
        return self.primary_key if is_full else self.identity_index

    @property
    def key_columns(self) -> frozenset[str]:
        """The columns by which rows are merged."""
        return frozenset(self.key_index.columns if self.key_index else ())

    @property
    def sent_columns(self) -> tuple[str, ...]:
        """The columns that the first publication sends, in table order."""
        names = self.carriages[0].columns
        if names is not None:
            return tuple(column.name for column in self.columns if column.name in names)
        return tuple(column.name for column in self.columns if not column.generated)

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """The columns that are sent and that no setting excludes."""
        return tuple(name for name in self.sent_columns if name not in self.excluded)


def read_published_tables(
    connection: psycopg.Connection,
    publications: Iterable[str],
    *,
    major: int,
    only: TableName | None = None,
) -> list[PublishedTable]:
    """Read every table of the publications, or `only` one, in order of name. Raises: SourceError.

    From version 16 on the server locks all these tables for the query. If a lock is not free in
    time, the error names the locked tables.
    """
    has_lists = major >= _LISTS_SINCE
    names = sql.Literal(list(publications))
    chosen: sql.Composable = sql.SQL("")
    if only is not None:
        own = map(sql.Literal, (only.schema, only.name))
        chosen = sql.SQL("and (schemaname, tablename) = ({}, {})").format(*own)
    query = sql.SQL(_TABLES).format(
        names=names,
        only=chosen,
        columns=sql.SQL("to_jsonb(attnames)" if has_lists else "null::jsonb"),
        filter=sql.SQL("rowfilter" if has_lists else "null::text"),
        filter_columns=sql.SQL(_FILTER_COLUMNS if has_lists else "null::text[]").format(
            names=names
        ),
        identity_of_leaf=sql.SQL(_IDENTITY_OF_LEAF),
    )
    with naming_locked_tables(connection), source_errors("read the published tables"):
        rows = connection.execute(query).fetchall()
    return [_read_table(row, sends_generated=major >= _GENERATED_SINCE) for row in rows]


def _read_table(row: tuple[Any, ...], *, sends_generated: bool) -> PublishedTable:
    schema, name, carriages, kind, identity, readable, secured, columns, indexes = row[:9]
    filter_columns, root, leaves, has_children = row[9:]
    # Version 15 lists generated columns as published, but does not send them.
    unsent = {column for column, _, _, kind in columns or () if kind and not sends_generated}
    return PublishedTable(
        schema=schema,
        name=name,
        carriages=tuple(
            PublicationEntry(
                publication,
                None if sent is None else tuple(c for c in sent if c not in unsent),
                condition,
            )
            for publication, sent, condition in carriages
        ),
        kind=kind,
        identity=ReplicaIdentity(identity),
        is_readable=readable,
        is_row_secured=secured,
        columns=tuple(TableColumn(*column) for column in columns or ()),
        indexes=tuple(
            UniqueIndex(index, primary, identifies, immediate, plain, tuple(named or ()))
            for index, primary, identifies, immediate, plain, named in indexes or ()
        ),
        filter_columns=frozenset(filter_columns or ()),
        root=root,
        leaves=tuple(
            (TableName(leaf_schema, leaf), frozenset(identified or ()))
            for leaf_schema, leaf, identified in leaves or ()
        ),
        has_children=has_children,
    )
