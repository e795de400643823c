"""The rows of tables that lack a value the stream never sent, as far as they can be read again.

A table is looked at when a merge has written it since the last look, and its files say by
themselves whether there is anything to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from cdc_core.errors import LakeError
from cdc_core.settings import Settings
from cdc_core.source.backfillable import find_hindrances
from cdc_core.source.connection import open_briefly
from cdc_core.staging.tables import staging_errors
from cdc_core.table_patterns import choose_rule
from cdc_core.vocabulary import TableName
from spark_jobs.backfilled import read_backfilled
from spark_jobs.damaged_tables import open_current
from spark_jobs.holes import Hole, find_holes
from spark_jobs.lake import Lake
from spark_jobs.ledger import find_cut, read_states


@dataclass(frozen=True, slots=True)
class Holes:
    """What can be filled by reading keys again, and why not the rest, by table."""

    fillable: Mapping[TableName, list[Hole]] = field(default_factory=dict)
    left: Mapping[TableName, str] = field(default_factory=dict)


class HoleReader:
    """Looks again and again; remembers of which version of a table it knows what."""

    def __init__(self, settings: Settings) -> None:
        """Nothing was looked at yet."""
        self._settings = settings
        self._lake = Lake.of(settings)
        self._known: dict[str, tuple[int, list[Hole]]] = {}

    def read(self) -> Holes:
        """The rows with holes of every table. Raises: StagingError, SourceError."""
        with staging_errors("look for holes in the tables"):
            found, left = self._look()
            if not found:
                return Holes(left=left)
            backfilled, states = read_backfilled(self._lake), read_states(self._lake)
            cut = find_cut(self._lake)
        source = self._settings.source
        with closing(open_briefly(source, application_name="walgate holes")) as connection:
            hindrances = find_hindrances(connection, source.publication)
        fillable: dict[TableName, list[Hole]] = {}
        for table, holes in found.items():
            state, merged = states.get(str(table)), None if cut is None else cut.bound
            if table not in hindrances:
                left[table] = "it is not published"
            elif (hindrance := hindrances[table]) is not None:
                left[table] = hindrance.reason
            elif (need := backfilled.find_need(str(table), state, merged)) is not None:
                left[table] = f"a backfill of it brings them: {need.reason}"
            elif self._hashes(table):
                left[table] = "the lake may have hashes of its key: a whole backfill brings them"
            else:
                fillable[table] = holes
        return Holes(fillable, left)

    def _look(self) -> tuple[dict[TableName, list[Hole]], dict[TableName, str]]:
        """The rows with holes, and why a table cannot be looked at."""
        cut = find_cut(self._lake)
        found: dict[TableName, list[Hole]] = {}
        left: dict[TableName, str] = {}
        for name, version in ({} if cut is None else cut.versions).items():
            table = TableName.parse(name)
            if name not in self._known or self._known[name][0] != version:
                try:
                    holes = self._find(table)
                except LakeError as error:
                    left[table] = error.message
                    continue
                self._known[name] = (version, holes)
            if self._known[name][1]:
                found[table] = self._known[name][1]
        return found, left

    def _find(self, table: TableName) -> list[Hole]:
        folder = self._lake.locate(table)
        delta = open_current(folder)
        return [] if delta is None else find_holes(folder, delta)

    def _hashes(self, table: TableName) -> bool:
        rules = self._settings.tables
        return choose_rule(rules, table, having=lambda rule: rule.hash) is not None
