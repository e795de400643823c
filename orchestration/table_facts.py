"""What the files of the lake's tables say of them, for `walgate status`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdc_core.errors import LakeError
from cdc_core.vocabulary import TableName
from spark_jobs.damaged_tables import UnreadableTable, open_current
from spark_jobs.holes import count_holes
from spark_jobs.lake import Lake, read_losses
from spark_jobs.stretch import has_shape


@dataclass(frozen=True, slots=True)
class Facts:
    """By quoted name of a table.

    `lossy` counts the values that its types could not hold, where the table records that; `holes`
    the rows that lack a value that was never sent; `unreadable` has why it cannot be read.
    """

    lossy: dict[str, int] = field(default_factory=dict)
    holes: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, LakeError] = field(default_factory=dict)


def read_facts(lake: Lake, tables: Iterable[str]) -> Facts:
    """Look at tables by their quoted names; what one lacks keeps no other from being read."""
    facts = Facts()
    for table in tables:
        folder = lake.locate(TableName.parse(table))
        try:
            delta = open_current(folder)
        except UnreadableTable as error:
            facts.unreadable[table] = error
            continue
        # A table that is gone, or that another writer has replaced, is named by its age.
        if delta is None or not has_shape(delta):
            continue
        losses = read_losses(delta)
        if losses is not None:
            facts.lossy[table] = sum(losses.values())
        facts.holes[table] = count_holes(folder, delta)
    return facts
