"""The lake's tables, its cuts and states, in memory: what merges commit, and readers open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Position
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.ledger import Cut, StateRecord
from spark_jobs.schema.evolution import TableSchema
from tests.simulation.server import Row

# Rows by key, each with the position of the change that it is by.
Rows: TypeAlias = dict[str, tuple[Row, Position]]


@dataclass(frozen=True, slots=True)
class Version:
    """A commit of a table: how far it has come by epoch's application, its shape and rows."""

    reached: dict[str, int]
    schema: TableSchema
    rows: Rows


@dataclass(frozen=True, slots=True)
class Opened:
    """A table at a version."""

    versions: tuple[Version, ...]

    def version(self) -> int:
        """Its number."""
        return len(self.versions) - 1

    def transaction_version(self, application: str) -> int | None:
        """How far it has come in an epoch."""
        return self.versions[-1].reached.get(application)

    def get_add_actions(self) -> pa.Table:
        """Its files and their sizes: none is known."""
        return pa.table({"size_bytes": pa.array([], pa.int64())})

    @property
    def newest(self) -> Version:
        """What is in it."""
        return self.versions[-1]


@dataclass
class Tables:
    """All that the merges of a world have made, and the locks that they hold."""

    versions: dict[LakePlace, list[Version]] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    states: dict[str, StateRecord] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    # The tables that maintenance has queued for a whole backfill.
    queued: set[str] = field(default_factory=set)

    def open(self, path: LakePlace) -> Opened | None:
        """A table at its newest version; None where there is none."""
        versions = self.versions.get(path)
        return Opened(tuple(versions)) if versions else None

    def find_cut(self, at: Bound | None) -> Cut | None:
        """The newest cut, or the newest at or below a bound."""
        known = [cut for cut in self.cuts if at is None or cut.bound <= at]
        return max(reversed(known), key=lambda cut: cut.bound, default=None)

    def unlock(self, process: str) -> None:
        """Give back what a dead process has locked."""
        self.locks = {name: owner for name, owner in self.locks.items() if owner != process}
