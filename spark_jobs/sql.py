"""SQL over the lake: every table it names as a view, all at one LSN.

A table is written `schema.table`, or `table` alone in `public`. Spark's temporary views know no
schema, and its permanent views cannot hold a fold of the log; so a view is named `schema.table` in
one quoted word, and the two words of the statement become that one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from cdc_core.errors import LakeError, Retry
from cdc_core.vocabulary import TableName
from spark_jobs.cuts import list_tables, table_at
from spark_jobs.lake import Bound, Lake
from spark_jobs.shapes import Halt

_CURRENT_SCHEMA = "public"
_NAME = r"`(?:[^`]|``)+`|[^\W\d]\w*"
# Literals and comments are passed over whole.
_TOKEN = re.compile(
    r"""(?P<skip>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/)"""
    rf"|(?P<first>{_NAME})(?:\s*\.\s*(?P<second>{_NAME}))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a query, the bound at which it read, and the tables that stop short of it."""

    rows: DataFrame
    at: Bound
    halted: Mapping[TableName, tuple[Bound, Halt]]


def answer_query(session: SparkSession, lake: Lake, query: str, at: Bound) -> Answer:
    """Run a statement with every table it names read at one bound."""
    listed = list_tables(lake)
    tables = {_fold_case(table): table for table in listed}
    alike = Counter(map(_fold_case, listed))
    named: set[TableName] = set()

    def name_view(match: re.Match[str]) -> str:
        if match["skip"] is not None:
            return match[0]
        first, second = _unquote(match["first"]), _unquote(match["second"])
        qualified = tables.get((first.lower(), second.lower())) if second else None
        if qualified is not None:
            _require_own_name(qualified, alike)
            named.add(qualified)
            return _quote(_view_name(qualified))
        unqualified = tables.get((_CURRENT_SCHEMA, first.lower()))
        if unqualified is not None:
            _require_own_name(unqualified, alike)
            named.add(unqualified)
        return match[0]

    rewritten = _TOKEN.sub(name_view, query)
    halted = register_views(session, lake, at, sorted(named))
    return Answer(session.sql(rewritten), at, halted)


def register_views(
    session: SparkSession, lake: Lake, at: Bound, tables: list[TableName]
) -> dict[TableName, tuple[Bound, Halt]]:
    """Make a temporary view of each table at a bound; give those that stop short of it."""
    halted: dict[TableName, tuple[Bound, Halt]] = {}
    for table in tables:
        reading = table_at(session, lake, table, at)
        if reading.halt is not None:
            halted[table] = (reading.through, reading.halt)
        reading.rows.createOrReplaceTempView(_quote(_view_name(table)))
        if table.schema == _CURRENT_SCHEMA:
            reading.rows.createOrReplaceTempView(_quote(table.name))
    return halted


def _require_own_name(table: TableName, alike: Mapping[tuple[str, str], int]) -> None:
    """Refuse a table that Spark could not tell from another. Raises: LakeError."""
    if alike[_fold_case(table)] > 1:
        raise LakeError(
            f"{table} and another table of the lake have names that differ in case only, which SQL"
            " cannot tell apart",
            fix="read their Delta tables by path, or publish one of them alone",
            retry=Retry.AFTER_FIX,
        )


def _view_name(table: TableName) -> str:
    return f"{table.schema}.{table.name}"


def _fold_case(table: TableName) -> tuple[str, str]:
    return table.schema.lower(), table.name.lower()


def _unquote(name: str | None) -> str:
    if name is None:
        return ""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _quote(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
