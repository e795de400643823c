"""`staging/relations`: each table shape that a change in the log was announced with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from cdc_core.errors import StagingError
from cdc_core.layout import RELATIONS_SCHEMA
from cdc_core.staging.tables import append_rows, open_table, read_rows, reopen_table
from cdc_core.vocabulary import Lsn, Relation


class RelationStore:
    """The relations on disk; a version is a hash of its content, so an epoch writes it once.

    Tables are known by oid, which means another table on another server: what is newest is that of
    one epoch.
    """

    def __init__(self, folder: Path) -> None:
        """Read what is there. Raises: StagingError."""
        self._folder = folder
        self._versions: set[tuple[int, int]] = set()
        self._latest: dict[int, Relation] = {}
        open_table(folder, RELATIONS_SCHEMA)
        self.reload()

    def reload(self, staged: tuple[int, Lsn] | None = None) -> None:
        """Open the table at its newest version and read it; `staged` is an epoch and its LSN.

        Without it the newest epoch counts that has any. What was stored for a transaction that has
        not landed is known, and not the newest: that transaction comes again, after others that are
        older. Raises: StagingError.
        """
        self._table = reopen_table(self._folder)
        rows = sorted(read_rows(self._table), key=lambda row: (row["epoch"], row["first_lsn"]))
        self._versions = {(row["epoch"], row["relation_version"]) for row in rows}
        epoch = staged[0] if staged else max((row["epoch"] for row in rows), default=0)
        self._latest = {
            row["oid"]: Relation.from_description(row)
            for row in rows
            if row["epoch"] == epoch and (staged is None or row["first_lsn"] < staged[1])
        }

    def latest(self, oid: int) -> Relation | None:
        """The newest stored relation of a table."""
        return self._latest.get(oid)

    def store(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Write those not stored yet, each with the commit LSN that first needs it.

        Raises: StagingError, after which it may be called again.
        """
        new = {
            relation.version: (relation, lsn)
            for relation, lsn in relations
            if (epoch, relation.version) not in self._versions
        }
        if not new:
            return
        rows = [
            {"relation_version": version, "epoch": epoch, "first_lsn": int(lsn)}
            | relation.describe()
            for version, (relation, lsn) in new.items()
        ]
        try:
            append_rows(
                self._table, self._folder, pa.Table.from_pylist(rows, schema=RELATIONS_SCHEMA)
            )
        except StagingError:
            self.reload()
            raise
        self._versions.update((epoch, version) for version in new)
        self._latest.update({relation.oid: relation for relation, _ in new.values()})
