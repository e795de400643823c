"""The targets of a source table: the Delta tables that merges write for it.

Each target has a folder, a lock, a merged LSN and a Delta version of its own. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cdc_core.vocabulary import TableMode, TableName


class TargetKind(StrEnum):
    """Which Delta table of a source table a target is; the value is the folder of such targets."""

    ROWS = "tables"
    """The rows of the source; in some modes also rows that the source deleted."""
    HISTORY = "history"
    """The versions that rows of the source had."""
    APPEND = "append"
    """The entries of the log."""


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One Delta table that merges write for a source table."""

    table: TableName
    kind: TargetKind = TargetKind.ROWS

    def __str__(self) -> str:
        """The name in ledgers and messages: `public.orders`, or `history/public.orders`.

        No table's name begins with `history/`: a schema that has a slash is quoted.
        """
        table = str(self.table)
        return table if self.kind is TargetKind.ROWS else f"{self.kind}/{table}"

    @classmethod
    def parse(cls, name: str) -> Target:
        """Read the name of a target. Raises: ValueError."""
        kind, slash, table = name.partition("/")
        if slash and kind in _KINDS_OF_MODES.values():
            return cls(TableName.parse(table), TargetKind(kind))
        return cls(TableName.parse(name))

    @property
    def follows_rows(self) -> bool:
        """Whether the target follows the rows of the source, and halts where they cannot."""
        return self.kind is not TargetKind.APPEND


# Which targets the modes ask for besides the rows.
_KINDS_OF_MODES = {
    TableMode.HISTORY: TargetKind.HISTORY,
    TableMode.APPEND: TargetKind.APPEND,
}


def list_targets(table: TableName, modes: Iterable[TableMode]) -> list[Target]:
    """List the targets of a table that has some modes."""
    wanted = {*modes}
    others = [kind for mode, kind in _KINDS_OF_MODES.items() if mode in wanted]
    return [Target(table, kind) for kind in (TargetKind.ROWS, *others)]
