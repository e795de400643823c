"""A problem of the source: what it is, what was expected and found, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What a problem does to replication.

    With an error replication is wrong, with a warning it is at risk, and with a note it covers less
    than a reader may expect.
    """

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
    """Sort errors first, then warnings, then notes; keep the order within each."""
    order = list(Severity)
    return sorted(problems, key=lambda problem: order.index(problem.severity))
