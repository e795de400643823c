"""`staging/relations`: each relation that the stream announced for a change in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from cdc_core.errors import StagingError
from cdc_core.lake_layout import RELATIONS
from cdc_core.lake_storage.place import LakePlace
from cdc_core.layout import RELATIONS_SCHEMA
from cdc_core.staging.tables import (
    append_rows,
    delete_rows,
    open_table,
    read_rows,
    read_version,
    reopen_table,
    rewrite_newest,
)
from cdc_core.vocabulary import Lsn, Relation


class RelationStore:
    """The relations on disk, in the order in which an epoch announced them.

    An announcement adds no row if it repeats the one before it, or if it comes again after a
    restart. An announcement that returns to an earlier relation adds a row with the earlier
    version, and is then the newest. The table's oid identifies the table. On another server the
    oid may be another table, so the newest relation of a table is the newest of one epoch.
    """

    def __init__(self, root: LakePlace) -> None:
        """Open the table of a lake, or create it, and read it. Raises: StagingError."""
        self._folder = root / RELATIONS
        self._stored: dict[tuple[int, int], list[tuple[Lsn, Relation]]] = {}
        self._latest: dict[int, Relation] = {}
        self._next = 0
        # Whether the disk may lack the last commit, because the disk refused it.
        self._is_doubtful = False
        open_table(self._folder, RELATIONS_SCHEMA)
        self.reload()

    def reload(self, staged: tuple[int, Lsn] | None = None) -> None:
        """Open the table's newest version and read it; `staged` is an epoch and its staged LSN.

        Without `staged`, the newest epoch that has relations counts. A relation of a transaction
        that the log does not have is known, but is not the newest: the transaction comes again,
        after older ones. Raises: StagingError.
        """
        self._table = reopen_table(self._folder)
        rows = read_rows(self._table)
        rows.sort(key=lambda row: (row["epoch"], row["first_lsn"], row["ordinal"]))
        self._stored = {}
        for row in rows:
            announced = Lsn(row["first_lsn"]), Relation.from_description(row)
            self._stored.setdefault((row["epoch"], row["oid"]), []).append(announced)
        self._next = max((row["ordinal"] + 1 for row in rows), default=0)
        newest = staged[0] if staged else max((row["epoch"] for row in rows), default=0)
        self._latest = {
            oid: relation
            for (epoch, oid), announced in self._stored.items()
            for lsn, relation in announced
            if epoch == newest and (staged is None or lsn < staged[1])
        }

    @property
    def version(self) -> int:
        """The version of the table that this object has read or written last."""
        return self._table.version()

    def remove_unlanded(self, epoch: int, staged: Lsn) -> None:
        """Remove the relations of transactions that the log does not have.

        Such a transaction comes again, perhaps without the chunk that has this relation.
        Later announcements must not be compared with a relation that no entry of the log has.
        Only the holder of the slot may call this. Raises: StagingError.
        """
        is_left = any(
            lsn >= staged
            for (stored_epoch, _), announced in self._stored.items()
            for lsn, _ in announced
            if stored_epoch == epoch
        )
        if is_left:
            delete_rows(self._table, self._folder, epoch=epoch, since=staged)
            self.reload((epoch, staged))

    def latest(self, oid: int) -> Relation | None:
        """The newest stored relation of a table; None without one."""
        return self._latest.get(oid)

    def store(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Write the relations that are not stored yet, each with its commit LSN, in log order.

        Raises: StagingError; it may then be called again.
        """
        if self._is_doubtful:
            rewrite_newest(self._folder, read_version(self._folder))
            self._is_doubtful = False
        announced = list(relations)
        stored, rows = dict(self._stored), list[dict[str, Any]]()
        ordered = sorted(announced, key=lambda one: (one[1], one[0].oid))
        for (lsn, oid), group in groupby(ordered, key=lambda one: (one[1], one[0].oid)):
            known = stored.get((epoch, oid), [])
            before = [relation for at, relation in known if at <= lsn]
            new = find_new(before, [relation for relation, _ in group])
            after = [one for one in known if one[0] > lsn]
            kept = [one for one in known if one[0] <= lsn]
            stored[epoch, oid] = [*kept, *((lsn, relation) for relation in new), *after]
            rows += [
                {"relation_version": relation.version, "epoch": epoch, "first_lsn": int(lsn)}
                | {"ordinal": self._next + len(rows) + place}
                | relation.describe()
                for place, relation in enumerate(new)
            ]
        if rows:
            try:
                append_rows(
                    self._table, self._folder, pa.Table.from_pylist(rows, schema=RELATIONS_SCHEMA)
                )
            except StagingError:
                self._is_doubtful = True
                self.reload()
                raise
            self._stored = stored
            self._next += len(rows)
        self._latest.update({relation.oid: relation for relation, _ in announced})


def find_new(stored: Sequence[Relation], announced: Sequence[Relation]) -> list[Relation]:
    """The announcements of a transaction that are not stored yet.

    `stored` are the relations that are stored up to this transaction. If they end with all of
    `announced`, the transaction comes again, and nothing is new.
    """
    steps = [next(same) for _, same in groupby(announced, key=Relation.describe)]
    ends = [relation.describe() for relation in stored[-len(steps) :]]
    described = [relation.describe() for relation in steps]
    if ends == described:
        return []
    return steps[1:] if ends[-1:] == described[:1] else steps
