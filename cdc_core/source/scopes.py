"""Checks the part of a table that a person chose, and writes its rows' conditions as SQL.

The server checks what the person wrote before anything begins. A bound must be a value of its
column. A condition must be one expression of the table's columns that is true or false.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from cdc_core.errors import ConfigurationError, SourceError
from cdc_core.source.connection import needs_person, source_errors
from cdc_core.spooled import Key, Scope
from cdc_core.vocabulary import Relation

_BAD_VALUE = "22"
# An expression that is wrong in one place may be right in the other. Only an expression that ends
# where it seems to end is right in both.
_PLACES = ("(\n{}\n)", "(array[\n{}\n])[1]")
_FIX = "see `walgate backfill --help`"


def resolve_scope(
    connection: psycopg.Connection, table: sql.Composable, relation: Relation, scope: Scope
) -> Scope:
    """Check a part of a table; return it with its bounds as the server writes them.

    Raises: ConfigurationError with every mistake, SourceError.
    """
    problems: list[str] = []
    low, high = (
        _resolve_key(connection, relation, name, key, problems)
        for name, key in (("from", scope.low), ("to", scope.high))
    )
    if low is not None and high is not None and not problems:
        width = min(len(low), len(high))
        values = (write_values(relation, key[:width]) for key in (low, high))
        order = sql.SQL("select ({}) <= ({})").format(*values)
        with source_errors(f"compare keys of {relation.table}"):
            row = connection.execute(order).fetchone()
        if row is not None and not row[0]:
            problems.append(f"{relation.table}: `from` lies above `to`")
    if scope.where is not None:
        problems += _check_condition(connection, table, relation, scope.where)
    if problems:
        raise ConfigurationError(problems, fix=_FIX)
    return Scope(low, high, scope.where)


def write_conditions(relation: Relation, scope: Scope) -> list[sql.Composable]:
    """Write the conditions that select the rows of a part of a table."""
    conditions = [
        bound_key(relation, comparison, key)
        for comparison, key in ((">=", scope.low), ("<=", scope.high))
        if key is not None
    ]
    if scope.where is not None:
        conditions.append(_place(_PLACES[0], scope.where))
    return conditions


def bound_key(
    relation: Relation, comparison: str, key: Key, *, names: Sequence[str] | None = None
) -> sql.Composable:
    """Write the condition that compares a row's key with `key` by `comparison`.

    If `key` is only the beginning of a key, only those columns are compared. `names` are the key's
    columns in the order of `key`; by default key order.
    """
    names = names or [relation.columns[index].name for index in relation.key]
    return sql.SQL("({}) {} ({})").format(
        list_names(names[: len(key)]),
        sql.SQL(comparison),
        write_values(relation, key, names=names),
    )


def write_values(
    relation: Relation, key: Key, *, names: Sequence[str] | None = None
) -> sql.Composable:
    """Write a key, or its beginning, as values of its columns; `names` as in `bound_key`."""
    types = {column.name: column.type_name for column in relation.columns}
    names = names or [relation.columns[index].name for index in relation.key]
    return sql.SQL(", ").join(
        sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(types[name]))
        for name, text in zip(names, key, strict=False)
    )


def list_names(names: Sequence[str]) -> sql.Composable:
    """Write column names as a list."""
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def estimate_rows(
    connection: psycopg.Connection, table: sql.Composable, relation: Relation, scope: Scope
) -> int:
    """Estimate the rows of a part of a table, by the planner. Raises: SourceError."""
    conditions = write_conditions(relation, scope) or [sql.SQL("true")]
    query = sql.SQL("explain (format json) select from {} where {}").format(
        table, sql.SQL(" and ").join(conditions)
    )
    with source_errors(f"estimate the rows of {relation.table}"):
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Plan Rows"])


def _resolve_key(
    connection: psycopg.Connection,
    relation: Relation,
    name: str,
    key: Key | None,
    problems: list[str],
) -> Key | None:
    """Return a bound as the server writes it; None without one.

    For a wrong bound the result is None, and `problems` gets the reason.
    """
    if key is None:
        return None
    columns = [relation.columns[index] for index in relation.key]
    if not 0 < len(key) <= len(columns):
        names = ", ".join(column.name for column in columns)
        problems.append(
            f"{relation.table}: `{name}` has {len(key)} values, expected 1 to {len(columns)},"
            f" of the columns {names}"
        )
        return None
    texts = []
    for column, text in zip(columns, key, strict=False):
        value = sql.SQL("select format('%s', {}::{})").format(
            sql.Literal(text), sql.SQL(column.type_name)
        )
        try:
            with source_errors(f"read `{name}`"), connection.transaction():
                row = connection.execute(value).fetchone()
        except SourceError as error:
            if not isinstance(error.__cause__, psycopg.DataError):
                raise
            problems.append(
                f"{relation.table}: `{name}` is not of type {column.type_name}, the type of"
                f" {column.name}"
            )
            return None
        assert row is not None
        texts.append(str(row[0]))
    return tuple(texts)


def _check_condition(
    connection: psycopg.Connection, table: sql.Composable, relation: Relation, where: str
) -> list[str]:
    for place in _PLACES:
        query = sql.SQL("explain select from {} where {}").format(table, _place(place, where))
        try:
            with source_errors("check `where`"), connection.transaction():
                # A prepared statement must be one statement alone. EXPLAIN does not run it.
                connection.execute(query, prepare=True)
        except SourceError as error:
            cause = error.__cause__
            if not isinstance(cause, psycopg.Error) or not _is_mistake(cause.sqlstate or ""):
                raise
            # The statement is not run, so the server can only quote the statement's own text.
            said = cause.diag.message_primary
            return [f"{relation.table}: `where` is not a valid condition: {said}"]
    return []


def _is_mistake(sqlstate: str) -> bool:
    return needs_person(sqlstate) or sqlstate.startswith(_BAD_VALUE)


def _place(place: str, where: str) -> sql.Composable:
    # The condition has lines of its own, so that a comment at its end ends with its line.
    return sql.SQL(place.replace("{}", "{0}")).format(sql.SQL(where))
