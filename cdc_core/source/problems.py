"""A problem of the source: what it is, expected against found, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Whether replication is wrong with it, at risk with it, or merely less than one may think."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding of the preflight; `code` is stable, `table` the quoted name or None."""

    severity: Severity
    code: str
    what: str
    expected: str
    found: str
    fix: str
    table: str | None = None

    def __str__(self) -> str:
        """One line for a person."""
        place = f"{self.table}: " if self.table else ""
        return (
            f"{self.severity} {self.code}: {place}{self.what}, expected {self.expected}, found"
            f" {self.found}; fix: {self.fix}"
        )


def sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Errors first, then warnings, then notes; the order among equals is kept."""
    order = list(Severity)
    return sorted(problems, key=lambda problem: order.index(problem.severity))
