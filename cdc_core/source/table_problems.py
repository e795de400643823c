"""Finds why the rows of a published table cannot be followed: identity, key, operations, access.

The stream must identify each row by a key that the publication sends. If the publication of a table
makes the source's own UPDATE and DELETE fail, the problem reports that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from cdc_core.source.problems import Problem, Severity
from cdc_core.source.publication_problems import Publication
from cdc_core.source.published_tables import PublishedTable, UniqueIndex
from cdc_core.vocabulary import ReplicaIdentity

_ALL_ACTIONS = frozenset({"insert", "update", "delete", "truncate"})
_CHANGING = frozenset({"update", "delete"})
_OWN_CHANGES_FAIL = "the source's own UPDATE and DELETE fail"


def find_row_problems(
    table: PublishedTable, publications: Sequence[Publication], connection: psycopg.Connection
) -> Iterator[Problem]:
    """Find why the rows of one table cannot be identified and followed."""
    published = frozenset[str]().union(
        *(p.actions for p in publications if p.name in table.publications)
    )
    breaks = bool(published & _CHANGING)
    if table.identity_columns:
        yield from _find_key_problems(table, connection)
        yield from _find_action_problems(table, published, connection)
    else:
        yield _explain_no_identity(table, connection, breaks=breaks)
    yield from _find_filter_problems(table, connection)
    yield from _find_access_problems(table, connection)


def _explain_no_identity(
    table: PublishedTable, connection: psycopg.Connection, *, breaks: bool
) -> Problem:
    """Report why rows cannot be identified, and which existing index would identify them."""
    quoted = table.identifier.as_string(connection)
    alter = f"ALTER TABLE {quoted}"
    what = "rows cannot be identified"
    if breaks:
        what += f"; while the table is published, {_OWN_CHANGES_FAIL}"
    expected = "a primary key or a replica identity index"
    primary = table.primary_key
    if table.identity is ReplicaIdentity.NOTHING:
        fix = f"{alter} REPLICA IDENTITY DEFAULT;"
        if primary is None:
            fix = f"{alter} ADD PRIMARY KEY (…); {fix}"
        return table_error(
            table, "identity_nothing", what, expected, "replica identity nothing", fix
        )
    if primary is not None and not primary.is_immediate:
        return table_error(
            table,
            "deferrable_key",
            f"{what}; PostgreSQL does not accept a deferrable constraint as replica identity",
            "a primary key that is not deferrable, or replica identity full",
            f"deferrable primary key {primary.name}",
            f"{alter} REPLICA IDENTITY FULL;",
        )
    plain = [i for i in table.indexes if i.is_plain and i.is_immediate and not i.is_primary]
    sound = [i for i in plain if not _nullable_columns(table, i)]
    if sound and primary is None:
        use = sql.SQL("{} REPLICA IDENTITY USING INDEX {};")
        fix = use.format(sql.SQL(alter), sql.Identifier(sound[0].name)).as_string(connection)
        found = f"no primary key, and unique index {sound[0].name} is not the replica identity"
        return table_error(table, "no_key", what, expected, found, fix)
    if plain and primary is None:
        return _explain_nullable(table, plain[0], what, connection)
    found = (
        "no primary key"
        if table.identity is ReplicaIdentity.DEFAULT
        else "a replica identity index that is missing or invalid"
    )
    add = "" if primary else f"{alter} ADD PRIMARY KEY (…); "
    fix = f"{add}{alter} REPLICA IDENTITY DEFAULT;"
    return table_error(table, "no_key", what, expected, found, fix)


def _find_key_problems(table: PublishedTable, connection: psycopg.Connection) -> Iterator[Problem]:
    alter = f"ALTER TABLE {table.identifier.as_string(connection)}"
    is_full = table.identity is ReplicaIdentity.FULL
    if is_full and not table.key_columns:
        yield table_error(
            table,
            "no_key",
            "rows without a key cannot be merged",
            "a primary key or a replica identity index",
            "replica identity full without a primary key",
            f"{alter} ADD PRIMARY KEY (…);",
        )
    index = table.identity_index
    if index is not None and _nullable_columns(table, index):
        yield _explain_nullable(table, index, "rows cannot be identified", connection)
    unsent = table.generated - frozenset(table.sent_columns)
    if table.key_columns & unsent:
        yield table_error(
            table,
            "generated_key",
            "a generated column of the key is not sent, so rows cannot be identified",
            "a key of columns that are sent",
            ", ".join(sorted(table.key_columns & unsent)),
            "on PostgreSQL 18, for a stored column, "
            + _alter_publication(table, "publish_generated_columns = stored", connection)
            + f" otherwise {alter} ADD PRIMARY KEY (…); on other columns",
        )
    missing = table.identity_columns - frozenset(table.sent_columns) - unsent
    if missing:
        columns = () if is_full else (*table.sent_columns, *sorted(missing))
        yield table_error(
            table,
            "column_list_key",
            f"the column list leaves out columns that identify a row, and {_OWN_CHANGES_FAIL}",
            ", ".join(sorted(table.identity_columns)),
            ", ".join(table.sent_columns),
            set_columns(table, columns, connection),
        )


def _nullable_columns(table: PublishedTable, index: UniqueIndex) -> list[str]:
    return [c.name for c in table.columns if c.name in index.columns and not c.not_null]


def _explain_nullable(
    table: PublishedTable, index: UniqueIndex, what: str, connection: psycopg.Connection
) -> Problem:
    """Report a unique index whose columns may be NULL in many rows."""
    alter = sql.SQL("ALTER TABLE {}").format(table.identifier)
    nullable = _nullable_columns(table, index)
    fixes = [
        *(sql.SQL("{} ALTER {} SET NOT NULL;").format(alter, sql.Identifier(n)) for n in nullable),
        sql.SQL("{} REPLICA IDENTITY USING INDEX {};").format(alter, sql.Identifier(index.name)),
    ]
    return table_error(
        table,
        "nullable_key",
        f"{what}: unique index {index.name} allows many rows with NULL",
        "columns that are NOT NULL",
        f"nullable {', '.join(nullable)}",
        sql.SQL(" ").join(fixes).as_string(connection),
    )


def _find_action_problems(
    table: PublishedTable, published: frozenset[str], connection: psycopg.Connection
) -> Iterator[Problem]:
    """Report publications that do not send all operations of a table with a key."""
    if published != _ALL_ACTIONS:
        yield table_error(
            table,
            "publish_actions",
            f"publication {table.publications[0]} does not publish all operations",
            "insert, update, delete, truncate",
            ", ".join(sorted(published)) or "nothing",
            _alter_publication(table, "publish = 'insert, update, delete, truncate'", connection),
        )


def _find_filter_problems(
    table: PublishedTable, connection: psycopg.Connection
) -> Iterator[Problem]:
    filters = [c.row_filter for c in table.carriages if c.row_filter is not None]
    if len(filters) < len(table.carriages) or not filters:
        return  # A publication without a filter sends all rows.
    beyond = table.filter_columns - table.identity_columns
    if beyond:
        alter = f"ALTER TABLE {table.identifier.as_string(connection)}"
        yield table_error(
            table,
            "filter_key",
            f"the row filter uses columns outside the replica identity, and {_OWN_CHANGES_FAIL}",
            "columns of the replica identity",
            ", ".join(sorted(beyond)),
            f"{alter} REPLICA IDENTITY FULL;",
        )
    yield Problem(
        Severity.NOTE,
        "row_filter",
        "a row filter leaves rows out",
        "all rows, or only those that readers need",
        " or ".join(filters),
        "nothing",
        table=str(table.table),
    )


def _find_access_problems(
    table: PublishedTable, connection: psycopg.Connection
) -> Iterator[Problem]:
    role = sql.Identifier(connection.info.user)
    if not table.is_readable:
        grant = sql.SQL("GRANT USAGE ON SCHEMA {} TO {role}; GRANT SELECT ON {} TO {role};")
        yield table_error(
            table,
            "role_select",
            "the role may not read the table, so Walgate cannot backfill or verify it",
            "SELECT",
            "no such privilege",
            grant.format(sql.Identifier(table.schema), table.identifier, role=role).as_string(
                connection
            ),
        )
    elif table.is_row_secured:
        yield Problem(
            Severity.WARNING,
            "row_security",
            "row-level security hides rows from the role's SELECT, but PostgreSQL sends changes of"
            " all rows: a backfill lacks the hidden rows, and a verification finds differences",
            "a role with BYPASSRLS, or a policy that shows every row to the role",
            "policies that apply to the role",
            sql.SQL("ALTER ROLE {} BYPASSRLS;").format(role).as_string(connection),
            table=str(table.table),
        )


def set_columns(
    table: PublishedTable, columns: Sequence[str], connection: psycopg.Connection
) -> str:
    """Write the SQL that sets a table's column list in its publication; no columns means all."""
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


def table_error(  # noqa: PLR0917 - the fields of a problem, in their order.
    table: PublishedTable, code: str, what: str, expected: str, found: str, fix: str
) -> Problem:
    """Make an error of one table."""
    return Problem(Severity.ERROR, code, what, expected, found, fix, table=str(table.table))


def _alter_publication(table: PublishedTable, option: str, connection: psycopg.Connection) -> str:
    alter = sql.SQL("ALTER PUBLICATION {} SET ({});")
    name = sql.Identifier(table.publications[0])
    return alter.format(name, sql.SQL(option)).as_string(connection)
