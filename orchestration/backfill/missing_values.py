"""Finds the rows of tables with missing values, as far as they can be read again.

A table is examined if a merge has written it since the last look. Its files alone show whether it
has such rows. A table may have millions of them. So keys are read only of rows that can be filled,
and no more of them than one run reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from cdc_core.errors import LakeError
from cdc_core.settings import Settings
from cdc_core.source.backfillable import find_read_obstacles
from cdc_core.source.connection import open_for_quick_query
from cdc_core.staging.tables import staging_errors
from cdc_core.table_patterns import choose_rule
from cdc_core.vocabulary import TableName
from spark_jobs.fold.plan import read_schema
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import find_cut, read_states
from spark_jobs.modes.registry import find_mode
from spark_jobs.target.missing_values import Hole, count_holes, find_holes, has_holes

# Keys of one run: it reads the oldest rows, and the next run goes on.
MAX_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class Holes:
    """The rows that one run fills by reading keys again, and why it leaves other tables."""

    fillable: Mapping[TableName, list[Hole]] = field(default_factory=dict)
    left: Mapping[TableName, str] = field(default_factory=dict)


class HoleReader:
    """Looks repeatedly; remembers what it has found in which version of a table."""

    def __init__(self, settings: Settings) -> None:
        """Nothing was looked at yet."""
        self._settings = settings
        self._lake = Lake.of(settings)
        # By table: whether a version has missing values, and the oldest such rows once read.
        self._known: dict[TableName, tuple[int, bool]] = {}
        self._taken: dict[TableName, tuple[int, int, list[Hole]]] = {}

    def read(self) -> Holes:
        """The rows with missing values that one run fills. Raises: StagingError, SourceError."""
        with staging_errors("look for missing values in the tables"):
            found, left = self._look()
            if not found:
                return Holes(left=left)
            backfilled, states = read_completeness(self._lake), read_states(self._lake)
            cut = find_cut(self._lake)
        source = self._settings.source
        with closing(open_for_quick_query(source, application_name="walgate holes")) as connection:
            hindrances = find_read_obstacles(connection, source.publication)
        for table in found:
            state, merged = states.get(str(table)), None if cut is None else cut.bound
            if table not in hindrances:
                left[table] = "it is not published"
            elif (hindrance := hindrances[table]) is not None:
                left[table] = hindrance.reason
            elif (need := backfilled.find_backfill_need(str(table), state, merged)) is not None:
                left[table] = f"its next backfill brings the values: {need.reason}"
            elif self._hashes_key(table):
                left[table] = "the lake has only hashes of its key: a whole backfill is needed"
        with staging_errors("look for missing values in the tables"):
            fillable = choose_oldest(set(found) - left.keys(), self._take, most=MAX_KEYS)
        self._taken = {table: self._taken[table] for table in fillable}
        return Holes(fillable, left)

    def count(self, table: TableName) -> int:
        """How many rows of a table have missing values now. Raises: StagingError."""
        folder = self._lake.locate(table)
        with staging_errors("count the missing values of a table"):
            delta = open_current(folder)
            return 0 if delta is None else count_holes(folder, delta, find_mode(delta))

    def _look(self) -> tuple[list[TableName], dict[TableName, str]]:
        """The tables that have missing values, and why a table cannot be examined."""
        cut = find_cut(self._lake)
        found: list[TableName] = []
        left: dict[TableName, str] = {}
        for table in [] if cut is None else cut.list_tables():
            assert cut is not None
            version = cut.versions[str(table)]
            if table not in self._known or self._known[table][0] != version:
                try:
                    has_any = self._has_holes(table)
                except LakeError as error:
                    left[table] = error.message
                    continue
                self._known[table] = version, has_any
            if self._known[table][1]:
                found.append(table)
        return found, left

    def _has_holes(self, table: TableName) -> bool:
        folder = self._lake.locate(table)
        delta = open_current(folder)
        if delta is None:
            return False
        read_schema(delta)  # Raises LakeError if another writer has replaced the table.
        return has_holes(folder, delta, find_mode(delta))

    def _take(self, table: TableName, most: int) -> list[Hole]:
        version, _ = self._known[table]
        if table not in self._taken or self._taken[table][:2] != (version, most):
            folder = self._lake.locate(table)
            delta = open_current(folder)
            holes = []
            if delta is not None:
                holes = find_holes(folder, delta, find_mode(delta), most=most)
            self._taken[table] = version, most, holes
        return self._taken[table][2]

    def _hashes_key(self, table: TableName) -> bool:
        chosen = choose_rule(self._settings.tables, table, having=lambda rule: rule.hash)
        delta = open_current(self._lake.locate(table))
        if chosen is None or delta is None:
            return False
        schema = read_schema(delta)
        return any(schema.columns[index].name in chosen[1].hash for index in schema.key)


def choose_oldest(
    tables: Iterable[TableName], find: Callable[[TableName, int], list[Hole]], *, most: int
) -> dict[TableName, list[Hole]]:
    """Take tables in order of name, and the oldest rows of each by `find`, until a run is full."""
    chosen: dict[TableName, list[Hole]] = {}
    for table in sorted(tables):
        if most <= 0:
            break
        if holes := find(table, most):
            chosen[table] = holes
            most -= len(holes)
    return chosen
