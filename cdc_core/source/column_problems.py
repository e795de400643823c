"""Finds columns that are not sent, and names of columns and tables that clash in the lake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from cdc_core.lake_layout import name_table
from cdc_core.source.problems import Problem, Severity
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.table_problems import set_columns, table_error
from cdc_core.vocabulary import ReplicaIdentity, encode_name

# Since this version publications can send stored generated columns. The server also refuses UPDATE
# and DELETE under replica identity full if generated columns are not sent.
_GENERATED_SINCE = 18


def find_column_problems(
    table: PublishedTable, connection: psycopg.Connection, *, major: int
) -> Iterator[Problem]:
    """Find the problems of one table's columns and their names."""
    yield from _find_list_problems(table, connection)
    yield from _find_generated_problems(table, connection, major=major)
    yield from _find_name_problems(table, connection)


def find_path_clashes(
    tables: Sequence[PublishedTable], connection: psycopg.Connection
) -> Iterator[Problem]:
    """Find tables with one folder on a file system that ignores case, as Spark does."""
    by_path = defaultdict(list)
    for table in tables:
        by_path[name_table(table.table).lower()].append(table)
    for first, *others in by_path.values():
        for other in others:
            yield table_error(
                other,
                "path_clash",
                "two tables' names differ in case only",
                "different names",
                f"{first.table} and {other.table}",
                sql.SQL("ALTER PUBLICATION {} DROP TABLE {};")
                .format(sql.Identifier(other.publications[0]), other.identifier)
                .as_string(connection),
            )


def _find_list_problems(table: PublishedTable, connection: psycopg.Connection) -> Iterator[Problem]:
    lists = {carriage.columns for carriage in table.carriages}
    if len(lists) > 1:
        yield table_error(
            table,
            "column_lists",
            f"publications {', '.join(table.publications)} give different column lists",
            "one column list",
            str(len(lists)),
            set_columns(table, table.sent_columns, connection),
        )
    left_out = [
        column.name
        for column in table.columns
        if column.name not in table.sent_columns and not column.generated
    ]
    if left_out:
        yield Problem(
            Severity.NOTE,
            "column_list",
            "a column list leaves columns out; if the list changes or is removed, the table halts,"
            " because the log does not have the values of older rows in these columns",
            "all columns, or only those that readers need",
            f"without {', '.join(left_out)}",
            "nothing",
            table=str(table.table),
        )


def _find_generated_problems(
    table: PublishedTable, connection: psycopg.Connection, *, major: int
) -> Iterator[Problem]:
    unsent = [c for c in table.columns if c.generated and c.name not in table.sent_columns]
    if not unsent:
        return
    names = ", ".join(column.name for column in unsent)
    publish = sql.SQL("ALTER PUBLICATION {} SET (publish_generated_columns = stored);")
    send = publish.format(sql.Identifier(table.publications[0])).as_string(connection)
    can_send = major >= _GENERATED_SINCE and all(column.generated == "s" for column in unsent)
    if major >= _GENERATED_SINCE and table.identity is ReplicaIdentity.FULL:
        default = sql.SQL("ALTER TABLE {} REPLICA IDENTITY DEFAULT;").format(table.identifier)
        yield table_error(
            table,
            "generated_identity",
            "replica identity full has generated columns that are not sent, and the source's own"
            " UPDATE and DELETE fail",
            "stored generated columns that are sent, or another replica identity",
            names,
            send if can_send else default.as_string(connection),
        )
        return
    yield Problem(
        Severity.NOTE,
        "generated_columns",
        "generated columns are not sent",
        "their values computed by the reader",
        names,
        f"nothing, or {send}" if can_send else "nothing",
        table=str(table.table),
    )


def _find_name_problems(table: PublishedTable, connection: psycopg.Connection) -> Iterator[Problem]:
    """Find columns that Spark cannot distinguish from each other or from the lake's own."""
    by_folded = defaultdict(list)
    for column in table.kept_columns:
        by_folded[encode_name(column).lower()].append(column)
    for names in by_folded.values():
        if len(names) > 1:
            yield table_error(
                table,
                "column_case",
                "column names differ in case only, and Spark does not distinguish them",
                "different names",
                ", ".join(names),
                set_columns(
                    table, [c for c in table.sent_columns if c not in names[1:]], connection
                ),
            )
    for column in table.kept_columns:
        if column.startswith("_"):
            yield table_error(
                table,
                "column_reserved",
                "a column name begins with _, as only the lake's own columns may",
                "names without a leading _",
                column,
                sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO …;")
                .format(table.identifier, sql.Identifier(column))
                .as_string(connection)
                + " or exclude it in [tables.…]",
            )
