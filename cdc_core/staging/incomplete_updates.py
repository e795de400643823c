"""The updates of a table in the log that lack a value of their row, because it was not sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.lake_layout import CHANGES, RELATIONS
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from cdc_core.spooled import Key
from cdc_core.staging.tables import read_rows, reopen_table, staging_errors
from cdc_core.vocabulary import Lsn, Operation, Position, Relation, TableName

_COLUMNS = ["epoch", "commit_lsn", "seq", "relation_version", "values", "old_values"]


@dataclass(frozen=True, slots=True)
class IncompleteUpdate:
    """An update that lacks a value. `old` is the key before it; None if the key is the same."""

    position: Position
    key: Key
    old: Key | None


def read_unsent(
    root: LakePlace, table: TableName, since: Position, wanted: Collection[Key]
) -> list[IncompleteUpdate]:
    """List the updates that lack a value, if their key is `wanted` or they change the key.

    The list begins at the commit LSN of `since`. A file without such an update costs only the
    columns of the filter.
    Order: position. Raises: StagingError.
    """
    with staging_errors("look for values that the log does not have"):
        log = open_delta(root / CHANGES).to_pyarrow_dataset()
        chosen = (
            (pc.field("epoch") == since.epoch)
            & (pc.field("commit_lsn") >= int(since.commit_lsn))
            & (pc.field("table") == str(table))
            # The footer bounds the operations of a row group, so most row groups are skipped.
            & (pc.field("op") == Operation.UPDATE.value)
            & pc.field("unchanged").is_valid()
        )
        found: list[IncompleteUpdate] = []
        keys: dict[int, tuple[int, ...]] = {}
        for fragment in log.get_fragments(filter=chosen):
            if not fragment.count_rows(filter=chosen):
                continue
            keys = keys or _read_keys(root)
            for batch in fragment.to_batches(columns=_COLUMNS, filter=chosen):
                found += _take(batch, keys, wanted)
    return sorted(found, key=lambda one: one.position)


def _read_keys(root: LakePlace) -> dict[int, tuple[int, ...]]:
    """The indexes of the key columns, by relation version."""
    rows = read_rows(reopen_table(root / RELATIONS))
    return {row["relation_version"]: Relation.from_description(row).key for row in rows}


def _take(
    batch: pa.RecordBatch, keys: dict[int, tuple[int, ...]], wanted: Collection[Key]
) -> Iterator[IncompleteUpdate]:
    for version in batch.column("relation_version").unique().to_pylist():
        rows = batch.filter(pc.equal(batch.column("relation_version"), version))
        news = _list_keys(rows.column("values"), keys[version])
        olds = _list_keys(rows.column("old_values"), keys[version])
        positions = zip(*(rows.column(name).to_pylist() for name in _COLUMNS[:3]), strict=True)
        for (epoch, lsn, seq), new, old in zip(positions, news, olds, strict=True):
            is_moved = None not in old and old != new
            if is_moved or new in wanted:
                position = Position(epoch, Lsn(lsn), seq)
                yield IncompleteUpdate(position, new, old if is_moved else None)


def _list_keys(values: pa.ListArray, key: tuple[int, ...]) -> list[Key]:
    columns = [pc.list_element(values, index).to_pylist() for index in key]
    return list(zip(*columns, strict=True))
