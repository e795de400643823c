"""What keeps a published table from being replicated truthfully: identity, key, columns, names.

A table's rows must be identified in the stream by a key that the publication carries; its columns
and its place in the lake must not clash. What the publication leaves out is said as a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc_core.source.problems import Problem, Severity
from cdc_core.vocabulary import ReplicaIdentity, TableName, encode_name

_ALL_ACTIONS = frozenset({"insert", "update", "delete", "truncate"})
# Versions in which publications began to carry generated columns, and column lists.
_GENERATED_SINCE = 18
_COLUMN_LISTS_SINCE = 15

_TABLES = """
with published as (
  select schemaname, tablename, array_agg(distinct pubname::text) as publications,
         jsonb_agg(distinct {column_list}) as column_lists
  from pg_publication_tables where pubname = any(%s) group by schemaname, tablename
)
select p.schemaname::text, p.tablename::text, p.publications, p.column_lists,
       c.relkind::text, c.relreplident::text,
       has_schema_privilege(n.oid, 'usage') and (has_table_privilege(c.oid, 'select')
         or has_any_column_privilege(c.oid, 'select')),
       (select array_agg(a.attname::text order by a.attnum) from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
       (select array_agg(a.attname::text order by a.attnum) from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated <> ''),
       (select array_agg(a.attname::text) from pg_index i join pg_attribute a
          on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
        where i.indrelid = c.oid and i.indisprimary and i.indisvalid),
       (select array_agg(a.attname::text) from pg_index i join pg_attribute a
          on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
        where i.indrelid = c.oid and i.indisreplident and i.indisvalid)
from published p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
order by 1, 2
"""
_LEFT_OUT = """
select 'unlogged tables',
       (select count(*) from pg_class c where c.relkind = 'r' and c.relpersistence = 'u')
union all
select 'sequences',
       (select count(*) from pg_class c where c.relkind = 'S' and c.relpersistence = 'p')
union all
select 'large objects', (select count(*) from pg_largeobject_metadata)
"""


@dataclass(frozen=True, slots=True)
class _Table:
    schema: str
    name: str
    publications: list[str]
    column_lists: list[list[str] | None]
    kind: str
    identity_letter: str
    is_readable: bool
    columns: list[str]
    generated: list[str] | None
    primary_key: list[str] | None
    identity_index: list[str] | None

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.name)

    @property
    def identity(self) -> ReplicaIdentity:
        return ReplicaIdentity(self.identity_letter)

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def identity_columns(self) -> set[str]:
        """The columns that old rows are sent with; empty where rows cannot be identified."""
        match self.identity:
            case ReplicaIdentity.DEFAULT:
                return set(self.primary_key or ())
            case ReplicaIdentity.INDEX:
                return set(self.identity_index or ())
            case ReplicaIdentity.FULL:
                return set(self.columns) - set(self.generated or ())
            case ReplicaIdentity.NOTHING:
                return set()

    @property
    def sent_columns(self) -> list[str]:
        """The columns of the first column list, else all."""
        return (self.column_lists[0] if self.column_lists else None) or self.columns


def find_table_problems(
    connection: psycopg.Connection, publications: Mapping[str, frozenset[str]], *, major: int
) -> Iterator[Problem]:
    """Find the problems of every table in these publications, given with what each publishes."""
    query = sql.SQL(_TABLES).format(
        column_list=sql.SQL("to_jsonb(attnames)" if major >= _COLUMN_LISTS_SINCE else "null::jsonb")
    )
    rows = connection.execute(query, (list(publications),)).fetchall()
    tables = [_Table(*row) for row in rows]
    if publications and not tables:
        yield Problem(
            Severity.ERROR,
            "publication_empty",
            f"no table is published by {', '.join(publications)}",
            "at least one table",
            "none",
            sql.SQL("ALTER PUBLICATION {} ADD TABLE …;")
            .format(sql.Identifier(next(iter(publications))))
            .as_string(connection),
        )
    for table in tables:
        yield from _find_key_problems(table, connection)
        yield from _find_action_problems(table, publications, connection)
        yield from _find_carriage_problems(table, connection, major=major)
        yield from _find_name_problems(table, connection)
    yield from _find_path_clashes(tables, connection)
    yield from _find_left_out(connection)


def _find_key_problems(table: _Table, connection: psycopg.Connection) -> Iterator[Problem]:
    quoted = table.identifier.as_string(connection)
    add_key = f"ALTER TABLE {quoted} ADD PRIMARY KEY (…);"
    use_key = f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT;"
    if not table.identity_columns:
        found = {
            ReplicaIdentity.DEFAULT: "no primary key",
            ReplicaIdentity.INDEX: "an identity index that is gone or invalid",
            ReplicaIdentity.NOTHING: "replica identity nothing",
        }[table.identity]
        yield _table_problem(
            table,
            "identity_nothing" if table.identity is ReplicaIdentity.NOTHING else "no_key",
            "rows cannot be identified; while published, the source's own UPDATE and DELETE fail",
            "a primary key or a replica identity index",
            found,
            use_key if table.primary_key else f"{add_key} {use_key}",
        )
    elif table.identity is ReplicaIdentity.FULL and not table.primary_key:
        yield _table_problem(
            table,
            "no_key",
            "rows without a key cannot be merged",
            "a primary key or a replica identity index",
            "replica identity full without a primary key",
            add_key,
        )
    missing = table.identity_columns - set(table.sent_columns)
    if missing:
        is_full = table.identity is ReplicaIdentity.FULL
        columns = [] if is_full else [*table.sent_columns, *sorted(missing)]
        yield _table_problem(
            table,
            "column_list_key",
            "the column list leaves out columns that identify a row, and the source's own UPDATE"
            " and DELETE fail",
            ", ".join(sorted(table.identity_columns)),
            ", ".join(table.sent_columns),
            _set_columns(table, columns, connection),
        )


def _find_action_problems(
    table: _Table, publications: Mapping[str, frozenset[str]], connection: psycopg.Connection
) -> Iterator[Problem]:
    """Refuse a publication that keeps back changes of a table which has a key."""
    published = frozenset[str]().union(*(publications[name] for name in table.publications))
    if not table.identity_columns or published == _ALL_ACTIONS:
        return
    alter = sql.SQL("ALTER PUBLICATION {} SET (publish = {});").format(
        sql.Identifier(table.publications[0]), sql.Literal("insert, update, delete, truncate")
    )
    yield _table_problem(
        table,
        "publish_actions",
        f"publication {table.publications[0]} keeps back changes",
        "insert, update, delete, truncate",
        ", ".join(sorted(published)) or "nothing",
        alter.as_string(connection),
    )


def _find_carriage_problems(
    table: _Table, connection: psycopg.Connection, *, major: int
) -> Iterator[Problem]:
    if not table.is_readable:
        grant = sql.SQL("GRANT USAGE ON SCHEMA {} TO {role}; GRANT SELECT ON {} TO {role};")
        yield _table_problem(
            table,
            "role_select",
            "the role may not read the table, so it can be neither copied nor compared",
            "SELECT",
            "no such privilege",
            grant.format(
                sql.Identifier(table.schema),
                table.identifier,
                role=sql.Identifier(connection.info.user),
            ).as_string(connection),
        )
    if len(table.column_lists) > 1:
        yield _table_problem(
            table,
            "column_lists",
            f"publications {', '.join(table.publications)} give different column lists",
            "one column list",
            str(len(table.column_lists)),
            _set_columns(table, table.sent_columns, connection),
        )
    unsent = [
        c for c in table.generated or () if major < _GENERATED_SINCE or c not in table.sent_columns
    ]
    if unsent:
        yield Problem(
            Severity.NOTE,
            "generated_columns",
            "generated columns are not sent",
            "their values computed by the reader",
            ", ".join(unsent),
            "nothing, or on PostgreSQL 18 ALTER PUBLICATION … SET (publish_generated_columns ="
            " stored)",
            table=str(table.table),
        )
    if table.kind == "p":
        yield Problem(
            Severity.WARNING,
            "leaf_truncate",
            "a TRUNCATE of a single partition is not sent when the root is published",
            "TRUNCATE of the whole table, or DELETE",
            "a partitioned table",
            "do not TRUNCATE single partitions",
            table=str(table.table),
        )


def _find_name_problems(table: _Table, connection: psycopg.Connection) -> Iterator[Problem]:
    """Columns that Spark could not tell from one another, or from the lake's own."""
    by_folded = defaultdict(list)
    for column in table.sent_columns:
        by_folded[encode_name(column).lower()].append(column)
    for names in by_folded.values():
        if len(names) > 1:
            yield _table_problem(
                table,
                "column_case",
                "columns differ in case only, which Spark cannot tell apart",
                "different names",
                ", ".join(names),
                _set_columns(
                    table, [c for c in table.sent_columns if c not in names[1:]], connection
                ),
            )
    for column in table.sent_columns:
        if column.startswith("_"):
            yield _table_problem(
                table,
                "column_reserved",
                "a column begins with _, as the lake's own columns do",
                "names without a leading _",
                column,
                sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO …;")
                .format(table.identifier, sql.Identifier(column))
                .as_string(connection),
            )


def _find_path_clashes(tables: list[_Table], connection: psycopg.Connection) -> Iterator[Problem]:
    """Tables whose folders are one on a file system, and in Spark, that ignore case."""
    by_path = defaultdict(list)
    for table in tables:
        by_path[table.table.path.lower()].append(table)
    for first, *others in by_path.values():
        for other in others:
            yield _table_problem(
                other,
                "path_clash",
                "two tables' names differ in case only",
                "different names",
                f"{first.table} and {other.table}",
                sql.SQL("ALTER PUBLICATION {} DROP TABLE {};")
                .format(sql.Identifier(other.publications[0]), other.identifier)
                .as_string(connection),
            )


def _find_left_out(connection: psycopg.Connection) -> Iterator[Problem]:
    """What logical replication never carries."""
    for kind, count in connection.execute(_LEFT_OUT):
        if count:
            yield Problem(
                Severity.NOTE,
                "not_replicated",
                f"{kind} are not replicated by PostgreSQL's logical replication",
                f"no {kind}, or none that readers need",
                str(count),
                "nothing",
            )


def _set_columns(table: _Table, columns: list[str], connection: psycopg.Connection) -> str:
    """Write the SQL that gives the table this column list in its publication; empty is all."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL(
        "ALTER PUBLICATION {publication} DROP TABLE {table}; ALTER PUBLICATION {publication}"
        " ADD TABLE {table}{columns};"
    ).format(
        publication=sql.Identifier(table.publications[0]),
        table=table.identifier,
        columns=sql.SQL(" ({})").format(names) if columns else sql.SQL(""),
    )
    return statement.as_string(connection)


def _table_problem(  # noqa: PLR0917 - the fields of a problem, in their order.
    table: _Table, code: str, what: str, expected: str, found: str, fix: str
) -> Problem:
    return Problem(Severity.ERROR, code, what, expected, found, fix, table=str(table.table))
