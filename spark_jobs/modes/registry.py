"""Chooses the mode of each table. To add a mode, add it and its tables to `MODES`."""

from __future__ import annotations

from collections.abc import Callable

from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.modes.current import CURRENT
from spark_jobs.modes.mode import Mode


def _is_any(_lake: Lake, _table: TableName) -> bool:
    return True


# Each mode, and whether it takes a table of a lake. The first mode that takes a table is its mode.
MODES: tuple[tuple[Mode, Callable[[Lake, TableName], bool]], ...] = ((CURRENT, _is_any),)


def choose_mode(lake: Lake, table: TableName) -> Mode:
    """Choose the mode of a table."""
    return next(mode for mode, takes in MODES if takes(lake, table))
