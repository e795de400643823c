"""Patterns that name tables: `public.orders`, `public.*`, `*.audit_*`, `"odd.schema"."a*b"`.

Outside double quotes `*` matches any run of characters; inside them each character is literal.
Names are as the catalog spells them: nothing is folded to lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cdc_core.vocabulary import TableName

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".\s]+)')
_PARTS = 2

_Rule = TypeVar("_Rule")


@dataclass(frozen=True, slots=True)
class TablePattern:
    """One pattern. If two match a table, the one with the larger `exactness` counts."""

    text: str
    expression: re.Pattern[str]
    exactness: tuple[bool, int]

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Read `schema.name`, quoted or not, with wildcards. Raises: ValueError."""
        expressions: list[str] = []
        wildcards = literals = position = 0
        while (match := _PART.match(text, position)) is not None:
            if match[1] is not None:
                name = match[1].replace('""', '"')
                expressions.append(re.escape(name))
                literals += len(name)
            else:
                pieces = match[2].split("*")
                expressions.append(".*".join(map(re.escape, pieces)))
                wildcards += len(pieces) - 1
                literals += sum(map(len, pieces))
            position = match.end()
            if text[position : position + 1] != ".":
                break
            position += 1
        if len(expressions) != _PARTS or position != len(text):
            raise ValueError(
                f"not a table or pattern: {text!r}; expected schema.name, schema.* or"
                ' "schema"."name"'
            )
        # No identifier has a NUL, so a NUL always separates schema and name.
        expression = re.compile("\0".join(expressions), re.DOTALL)
        return cls(text, expression, (not wildcards, literals))

    @property
    def is_exact(self) -> bool:
        """Whether the pattern has no wildcards, so that it names one table."""
        return self.exactness[0]

    def matches(self, table: TableName) -> bool:
        """Whether the pattern names the table."""
        return self.expression.fullmatch(f"{table.schema}\0{table.name}") is not None


def choose_rule(
    rules: Mapping[str, _Rule], table: TableName, *, having: Callable[[_Rule], object]
) -> tuple[TablePattern, _Rule] | None:
    """Choose the rule whose pattern matches the table most exactly; None if no pattern matches.

    Only rules for which `having` is true count. So a rule about something else hides no rule.
    """
    patterns = ((TablePattern.parse(text), rule) for text, rule in rules.items() if having(rule))
    found = [(pattern, rule) for pattern, rule in patterns if pattern.matches(table)]
    return max(found, key=lambda entry: (entry[0].exactness, entry[0].text), default=None)
