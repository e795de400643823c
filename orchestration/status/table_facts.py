"""Reads facts from the files of the lake's tables, for `walgate status`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdc_core.errors import LakeError
from cdc_core.vocabulary import TableName
from spark_jobs.fold.plan import has_table_schema
from spark_jobs.lake.damaged_tables import UnreadableTable, open_current
from spark_jobs.lake.lake import Lake, read_losses
from spark_jobs.modes.registry import find_mode
from spark_jobs.target.missing_values import count_holes


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts by the quoted name of a table.

    `lossy` counts the values that its types could not hold, if the table records that. `holes`
    counts its rows with missing values. `unreadable` has the error of a table that cannot be read.
    """

    lossy: dict[str, int] = field(default_factory=dict)
    holes: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, LakeError] = field(default_factory=dict)


def read_facts(lake: Lake, tables: Iterable[TableName]) -> Facts:
    """Read the rows of tables. A table that cannot be read does not stop the others."""
    facts = Facts()
    for name in tables:
        table = str(name)
        folder = lake.locate(name)
        try:
            delta = open_current(folder)
        except UnreadableTable as error:
            facts.unreadable[table] = error
            continue
        # `inspect_targets` reports a table that is gone or that another writer has replaced.
        if delta is None or not has_table_schema(delta):
            continue
        losses = read_losses(delta)
        if losses is not None:
            facts.lossy[table] = sum(losses.values())
        facts.holes[table] = count_holes(folder, delta, find_mode(delta))
    return facts
