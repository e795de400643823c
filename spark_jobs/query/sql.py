"""Runs SQL over the lake: each table that a statement names becomes a view, all at one LSN.

A statement names a table as `schema.table`, or as `table` alone if the schema is `public`. As
`tables.schema.table`, it reads all rows that the mode of the table stores, deleted ones too.
Spark's temporary views have no schema, and its permanent views cannot hold a fold of the log. So a
view has this name as one quoted word, which replaces the words in the statement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from cdc_core.errors import LakeError, Retry
from cdc_core.vocabulary import TableName
from spark_jobs.lake.completeness import Incomplete
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.query.as_of import TableReading, list_tables, table_at
from spark_jobs.schema.evolution import Halt

_CURRENT_SCHEMA = "public"
# Before `schema.table`: all rows and columns that the mode of the table has.
_STORED = "tables"
_NAME = r"`(?:[^`]|``)+`|[^\W\d]\w*"
# `skip` matches literals and comments whole, so that no name is found in them.
_TOKEN = re.compile(
    r"""(?P<skip>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/)"""
    rf"|(?P<first>{_NAME})(?:\s*\.\s*(?P<second>{_NAME}))?(?P<more>\s*\.\s*(?P<third>{_NAME}))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a query, the bound at which it read, and the tables that do not reach that bound.

    A `halted` table is read at its own, earlier bound. A `lacking` table may not have all rows.
    """

    rows: DataFrame
    at: Bound
    halted: Mapping[TableName, tuple[Bound, Halt]]
    lacking: Mapping[TableName, Incomplete]


def answer_query(session: SparkSession, lake: Lake, query: str, at: Bound) -> Answer:
    """Run a statement with every table it names read at one bound."""
    listed = list_tables(lake)
    tables = {_fold_case(table): table for table in listed}
    alike = Counter(map(_fold_case, listed))
    named: set[_View] = set()

    def name_view(match: re.Match[str]) -> str:
        if match["skip"] is not None:
            return match[0]
        first, second, third = (_unquote(match[part]) for part in ("first", "second", "third"))
        stored = tables.get((second.lower(), third.lower())) if third else None
        if stored is not None and first.lower() == _STORED:
            return name_table(stored, is_stored=True)
        qualified = tables.get((first.lower(), second.lower())) if second else None
        if qualified is not None:
            return name_table(qualified) + (match["more"] or "")
        unqualified = tables.get((_CURRENT_SCHEMA, first.lower()))
        if unqualified is not None:
            name_table(unqualified)
        return match[0]

    def name_table(table: TableName, *, is_stored: bool = False) -> str:
        _require_own_name(table, alike)
        view = _View(table, is_stored)
        named.add(view)
        return _quote(view.name)

    rewritten = _TOKEN.sub(name_view, query)
    readings = _register_views(session, lake, at, sorted(named))
    halted = {t: (r.through, r.halt) for t, r in readings.items() if r.halt is not None}
    lacking = {t: r.incomplete for t, r in readings.items() if r.incomplete is not None}
    return Answer(session.sql(rewritten), at, halted, lacking)


@dataclass(frozen=True, slots=True, order=True)
class _View:
    """A view of a table: of its present rows, or of all that the table's mode has."""

    table: TableName
    is_stored: bool

    @property
    def name(self) -> str:
        """The name of the view, as one word."""
        name = f"{self.table.schema}.{self.table.name}"
        return f"{_STORED}.{name}" if self.is_stored else name


def _register_views(
    session: SparkSession, lake: Lake, at: Bound, views: list[_View]
) -> dict[TableName, TableReading]:
    """Make temporary views of tables at a bound."""
    readings: dict[TableName, TableReading] = {}
    for view in views:
        table = view.table
        reading = table_at(session, lake, table, at, as_stored=view.is_stored)
        readings[table] = reading
        reading.rows.createOrReplaceTempView(_quote(view.name))
        if table.schema == _CURRENT_SCHEMA and not view.is_stored:
            reading.rows.createOrReplaceTempView(_quote(table.name))
    return readings


def _require_own_name(table: TableName, alike: Mapping[tuple[str, str], int]) -> None:
    """Refuse a table whose name differs from another one in case only. Raises: LakeError."""
    if alike[_fold_case(table)] > 1:
        raise LakeError(
            f"the names of {table} and another table of the lake differ in case only, and SQL does"
            " not distinguish them",
            fix="read their Delta tables by path, or publish only one of them",
            retry=Retry.AFTER_FIX,
        )


def _fold_case(table: TableName) -> tuple[str, str]:
    return table.schema.lower(), table.name.lower()


def _unquote(name: str | None) -> str:
    if name is None:
        return ""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _quote(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
