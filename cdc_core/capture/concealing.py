"""Finds the columns of each table that the settings exclude from the log or hash.

If a rule names a column that is missing, the name is misspelt or the column was renamed. Its values
would then be staged in the clear. So if the rule names the table exactly, capture stops if a column
of the rule is missing, and the table is new or another column has appeared. A rule with a pattern
conceals those of its columns that a table has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cdc_core.errors import ConfigurationError
from cdc_core.protocol.concealment import Conceal, Concealment, Treatment, mark_key
from cdc_core.settings import Settings, TableSettings
from cdc_core.table_patterns import choose_rule
from cdc_core.vocabulary import Relation


def conceal_nothing(_: Relation) -> None:
    """Conceal no column: return None for every relation."""


def read_key(settings: Settings) -> bytes:
    """The key for hashes; empty if the settings have none."""
    return b"" if settings.hash_key is None else settings.hash_key.get_secret_value().encode()


def make_conceal(settings: Settings, latest: Callable[[int], Relation | None]) -> Conceal:
    """Return a function that gives the rule for a relation; call it in log order.

    `latest` returns the log's newest relation of a table.
    """
    if not settings.tables:
        return conceal_nothing
    key = read_key(settings)
    seen: dict[int, Relation] = {}

    def conceal(relation: Relation) -> Concealment | None:
        previous = seen.get(relation.oid) or latest(relation.oid)
        chosen = _choose_concealment(settings.tables, relation, previous, key)
        seen[relation.oid] = relation
        return chosen

    return conceal


def find_other_rule(settings: Settings, relation: Relation, known: Relation | None) -> str | None:
    """Describe how a worker's exclude and hash rules differ from capture's; None if they do not.

    `relation` is the result of the worker's rules. `known` is capture's relation with all columns.
    """
    found = choose_rule(settings.tables, relation.table, having=lambda rule: rule.conceals)
    excluded = frozenset(found[1].exclude if found else ())
    hashed = frozenset(found[1].hash if found else ())
    mark = mark_key(read_key(settings))
    for column in relation.columns:
        if column.name in excluded:
            return f"column {column.name} was read, but capture excludes it"
        if column.hashed_by != (mark if column.name in hashed else None):
            return f"column {column.name} does not have the hash rule of capture"
    names = {} if known is None else {column.attnum: column.name for column in known.columns}
    for number in relation.left_out:
        if number in names and names[number] not in excluded:
            return f"column {names[number]} was left out, but capture stages it"
    return None


def _choose_concealment(
    rules: Mapping[str, TableSettings], relation: Relation, previous: Relation | None, key: bytes
) -> Concealment | None:
    found = choose_rule(rules, relation.table, having=lambda rule: rule.conceals)
    if found is None:
        return None
    pattern, rule = found
    section = f"[tables.{pattern.text!r}]"
    names, listed = {c.name for c in relation.columns}, {*rule.exclude, *rule.hash}
    appeared = names - listed - {c.name for c in (previous.columns if previous else ())}
    missing = sorted(listed - names)
    if missing and appeared and pattern.is_exact:
        what = (
            f"{section} conceals {', '.join(missing)}, which PostgreSQL does not send for"
            f" {relation.table}; {', '.join(sorted(appeared))} may be that column renamed, so"
            " capture stops before it stages changes of the table"
        )
        fix = (
            "correct the names; while older changes still have the old name, list both names under"
            " a pattern that matches the table: a pattern may name columns that a table does not"
            " have"
        )
        raise ConfigurationError([what], fix=fix)
    identifying = {relation.columns[index].name for index in relation.key}
    if keys := sorted(identifying.intersection(rule.exclude)):
        what = f"{section} excludes {', '.join(keys)}, which identifies rows of {relation.table}"
        raise ConfigurationError([what], fix="hash it instead, or take it off the list")
    treatments = tuple(
        Treatment.DROP
        if column.name in rule.exclude
        else Treatment.HASH
        if column.name in rule.hash
        else Treatment.KEEP
        for column in relation.columns
    )
    if all(treatment is Treatment.KEEP for treatment in treatments):
        return None
    return Concealment(treatments, key)
