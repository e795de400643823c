"""Chooses the mode of each table. To add a mode, add it to `MODES`."""

from __future__ import annotations

from collections.abc import Iterable

from deltalake import DeltaTable

from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.modes.current import CURRENT
from spark_jobs.modes.mode import Mode
from spark_jobs.modes.soft_delete import SOFT_DELETE

MODES = (CURRENT, SOFT_DELETE)


def choose_mode(lake: Lake, table: TableName) -> Mode:
    """The mode that the settings choose for a table's rows. Merges write the rows in it."""
    names = lake.choose_modes(table)
    return next(mode for mode in MODES if mode.name in names)


def find_mode(table: DeltaTable) -> Mode:
    """The mode in which an open version of a table was written, by its columns."""
    return find_mode_of(field.name for field in table.schema().fields)


def find_mode_of(columns: Iterable[str]) -> Mode:
    """The mode in which a table with some columns was written."""
    names = {*columns}
    own = [mode for mode in MODES if mode.fields]
    return next(
        (mode for mode in own if names.issuperset(field.name for field in mode.fields)), CURRENT
    )
