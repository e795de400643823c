"""Runs SQL over the lake: each table that a statement names becomes a view, all at one LSN.

A statement names a table as `schema.table`, or as `table` alone if the schema is `public`. Spark's
temporary views have no schema, and its permanent views cannot hold a fold of the log. So a view has
the name `schema.table` as one quoted word, which replaces the two words in the statement.
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
_NAME = r"`(?:[^`]|``)+`|[^\W\d]\w*"
# `skip` matches literals and comments whole, so that no name is found in them.
_TOKEN = re.compile(
    r"""(?P<skip>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/)"""
    rf"|(?P<first>{_NAME})(?:\s*\.\s*(?P<second>{_NAME}))?",
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
    readings = _register_views(session, lake, at, sorted(named))
    halted = {t: (r.through, r.halt) for t, r in readings.items() if r.halt is not None}
    lacking = {t: r.incomplete for t, r in readings.items() if r.incomplete is not None}
    return Answer(session.sql(rewritten), at, halted, lacking)


def _register_views(
    session: SparkSession, lake: Lake, at: Bound, tables: list[TableName]
) -> dict[TableName, TableReading]:
    """Make a temporary view of each table at a bound."""
    readings: dict[TableName, TableReading] = {}
    for table in tables:
        reading = readings[table] = table_at(session, lake, table, at)
        reading.rows.createOrReplaceTempView(_quote(_view_name(table)))
        if table.schema == _CURRENT_SCHEMA:
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
