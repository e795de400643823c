"""Runs SQL over the lake: each table that a statement names becomes a view, all at one LSN.

A statement names a table as `schema.table`, or as `table` alone if the schema is `public`. As
`tables.schema.table`, it reads all rows that the mode of the table stores, deleted ones too. As
`append.schema.table`, it reads the entries of the table, and as `history.schema.table` the versions
of its rows.
Spark's temporary views have no schema, and its permanent views cannot hold a fold of the log. So a
view has this name as one quoted word, which replaces the words in the statement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from cdc_core.errors import LakeError, Retry
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import TableName
from spark_jobs.lake.completeness import Incomplete
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.query.as_of import TableReading, list_tables, table_at
from spark_jobs.query.entries_at import entries_at
from spark_jobs.query.versions_at import versions_at
from spark_jobs.schema.evolution import Halt

_CURRENT_SCHEMA = "public"
_NAME = r"`(?:[^`]|``)+`|[^\W\d]\w*"
# `skip` matches literals and comments whole, so that no name is found in them.
_TOKEN = re.compile(
    r"""(?P<skip>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/)"""
    rf"|(?P<first>{_NAME})(?:\s*\.\s*(?P<second>{_NAME}))?(?P<more>\s*\.\s*(?P<third>{_NAME}))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a query, the bound at which it read, and the targets that do not reach that bound.

    A `halted` target is read at its own, earlier bound. A `lacking` one may not have all rows.
    """

    rows: DataFrame
    at: Bound
    halted: Mapping[Target, tuple[Bound, Halt]]
    lacking: Mapping[Target, Incomplete]


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
        known = tables.get((second.lower(), third.lower())) if third else None
        if known is not None and first.lower() in set(TargetKind):
            return name_table(known, TargetKind(first.lower()))
        qualified = tables.get((first.lower(), second.lower())) if second else None
        if qualified is not None:
            return name_table(qualified) + (match["more"] or "")
        unqualified = tables.get((_CURRENT_SCHEMA, first.lower()))
        if unqualified is not None:
            name_table(unqualified)
        return match[0]

    def name_table(table: TableName, kind: TargetKind | None = None) -> str:
        _require_own_name(table, alike)
        view = _View(table, kind)
        named.add(view)
        return _quote(view.name)

    rewritten = _TOKEN.sub(name_view, query)
    readings = _register_views(session, lake, at, named)
    halted = {t: (r.through, r.halt) for t, r in readings.items() if r.halt is not None}
    lacking = {t: r.incomplete for t, r in readings.items() if r.incomplete is not None}
    return Answer(session.sql(rewritten), at, halted, lacking)


@dataclass(frozen=True, slots=True)
class _View:
    """A view of a table: of its present rows, or of all that one of its targets has."""

    table: TableName
    kind: TargetKind | None

    @property
    def name(self) -> str:
        """The name of the view, as one word."""
        name = f"{self.table.schema}.{self.table.name}"
        return name if self.kind is None else f"{self.kind}.{name}"


def _register_views(
    session: SparkSession, lake: Lake, at: Bound, views: Collection[_View]
) -> dict[Target, TableReading]:
    """Make temporary views at a bound; return what was read, by target."""
    readings: dict[Target, TableReading] = {}
    for view in sorted(views, key=lambda view: view.name):
        table = view.table
        target = Target(table, view.kind or TargetKind.ROWS)
        if view.kind is TargetKind.APPEND:
            _require_asked_for(lake, target)
            reading = entries_at(session, lake, target, at)
        elif view.kind is TargetKind.HISTORY:
            _require_asked_for(lake, target)
            reading = versions_at(session, lake, target, at)
        else:
            reading = table_at(session, lake, table, at, as_stored=view.kind is not None)
        readings[target] = reading
        reading.rows.createOrReplaceTempView(_quote(view.name))
        if table.schema == _CURRENT_SCHEMA and view.kind is None:
            reading.rows.createOrReplaceTempView(_quote(table.name))
    return readings


def _require_asked_for(lake: Lake, target: Target) -> None:
    """Refuse a target that the settings do not ask for. Raises: LakeError."""
    if target not in lake.choose_targets(target.table):
        raise LakeError(
            f"the lake has no target {target}: `modes` of {target.table} has no {target.kind}",
            fix=f'add "{target.kind}" to `modes` in the section of the table in walgate.toml',
            retry=Retry.AFTER_FIX,
        )


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
