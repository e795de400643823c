"""Finds `exclude` and `hash` rules that do not fit what is published.

A misspelt rule conceals nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cdc_core.settings import TableSettings
from cdc_core.source.problems import Problem, Severity
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.table_problems import table_error
from cdc_core.table_patterns import TablePattern, choose_rule


def _conceals(rule: TableSettings) -> bool:
    return rule.conceals


def exclude_columns(
    tables: Sequence[PublishedTable], rules: Mapping[str, TableSettings]
) -> list[PublishedTable]:
    """Set `excluded` of each table to the columns that the rules exclude."""
    chosen = [(table, choose_rule(rules, table.table, having=_conceals)) for table in tables]
    return [
        table if found is None else replace(table, excluded=frozenset(found[1].exclude))
        for table, found in chosen
    ]


def find_concealment_problems(
    tables: Sequence[PublishedTable], rules: Mapping[str, TableSettings]
) -> Iterator[Problem]:
    """Find rules that match no table, name columns that are not sent, or exclude key columns."""
    for text in rules:
        pattern = TablePattern.parse(text)
        if not any(pattern.matches(table.table) for table in tables):
            yield Problem(
                Severity.ERROR if pattern.is_exact else Severity.WARNING,
                "rule_without_table",
                f"[tables.{text!r}] names no published table, and does nothing",
                "the name of a published table, spelt as the catalog has it",
                text,
                "correct the name, or remove the section",
            )
    for table in tables:
        found = choose_rule(rules, table.table, having=_conceals)
        if found is None:
            continue
        pattern, rule = found
        missing = sorted({*rule.exclude, *rule.hash} - {*table.sent_columns})
        if missing and pattern.is_exact:
            yield table_error(
                table,
                "rule_without_column",
                "PostgreSQL does not send a column that the rule conceals; capture stops at this"
                " table, because a renamed column would reach the lake unconcealed",
                ", ".join(missing),
                ", ".join(table.sent_columns),
                f"correct the names in [tables.{pattern.text!r}]",
            )
        keys = sorted(table.key_columns.intersection(rule.exclude))
        if keys:
            yield table_error(
                table,
                "exclude_key",
                "a column that identifies rows cannot be excluded",
                "columns outside the key",
                ", ".join(keys),
                "hash it instead, or take it off the list",
            )
