"""Finds the tables of the lake that are older than the newest cut says.

A person deleted the folder or restored it from a copy, or a power failure took its last commits. Or
another writer replaced the table: it then counts as a table without a folder. A thorough merge
opens every table before its first round. Before other rounds, it opens only the tables that lack
the commit file that the cut names; to look for that file costs no more than a file's status.
"""

from __future__ import annotations

from dataclasses import replace

from deltalake import DeltaTable

from cdc_core.lake_layout import name_commit
from cdc_core.vocabulary import TableName
from spark_jobs.fold.plan import has_table_schema
from spark_jobs.lake.cut_plan import FoundTable, Place, find_age
from spark_jobs.lake.damaged_tables import UnreadableTable, open_current
from spark_jobs.lake.lake import Bound, Epoch, Lake, find_bound
from spark_jobs.lake.ledger import Cut
from spark_jobs.log.files import LogFiles

FIX = (
    "run `walgate merge`: it builds the table again, and queues a backfill if the log lacks changes"
)


def find_older(
    lake: Lake, cut: Cut | None, epochs: list[Epoch], *, is_thorough: bool
) -> dict[str, str]:
    """Find the tables that are older than a cut says; return the reasons by quoted name.

    A table that cannot be opened counts as older. Unless `is_thorough`, a table that has the commit
    file that the cut names is not opened.
    """
    older: dict[str, str] = {}
    for table, place in ({} if cut is None else cut.places).items():
        if place.version is None:
            continue
        folder = lake.locate(TableName.parse(table))
        commit = folder / name_commit(place.version)
        if commit.exists() and not is_thorough:
            continue
        try:
            found = inspect_table(open_current(folder), epochs)
        except UnreadableTable as error:
            # The round tries this table, too. If it fails again, the other tables go on.
            older[table] = error.message
            continue
        age = find_age(know_place(place, epochs), found)
        if age is not None:
            older[table] = age
    return older


def know_place(place: Place, epochs: list[Epoch]) -> Place:
    """Return a place, without its `held` bound if the lake does not know that bound's epoch.

    `find_bound` finds only bounds of known epochs, so no commit could show this one.
    """
    is_known = place.held is not None and any(e.number == place.held.epoch for e in epochs)
    return place if is_known else replace(place, held=None)


def inspect_table(table: DeltaTable | None, epochs: list[Epoch]) -> FoundTable | None:
    """What a table's folder holds; None if it holds no table."""
    if table is None:
        return None
    return FoundTable(
        table.version(), find_bound(table, epochs), is_foreign=not has_table_schema(table)
    )


def find_log_begin(log: LogFiles) -> Bound | None:
    """The least bound of an entry in the log; None if no file of the log has one."""
    return min((file.begin for file in log.files if file.begin is not None), default=None)
