"""Remembers the changed keys of running backfills, and drops the stale rows of each chunk.

The caller keeps the order of the stream: it reports all rows that precede a watermark before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.backfill.marks import BeginBackfill, EndBackfill, KeepChangedKeys, Watermark
from cdc_core.backfill.visibility import ChangedKeys, Snapshot, Texts, Xids, join_key
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.spooled import Chunk
from cdc_core.vocabulary import Operation, Relation

# Above this size capture drops the largest set of changed keys. Its backfill asks for a new one.
MEMORY_BYTES = 64 << 20
# A worker gives a sign of life every minute.
SILENCE_US = 10 * 60 * 1_000_000
# Far more than backfills at once. But a database role can begin more for the same backfill.
_MAX_MEMORIES = 256


@dataclass(frozen=True, slots=True)
class Admitted:
    """The entries of a chunk for the log: its current rows, then the asked keys that have no row.

    `read` counts the current rows. `stale` counts the rows that changed since; they are not among
    `rows`. `dropped` are the keys of the stale rows, and the asked keys without a row that changed
    since.
    """

    rows: pa.Table
    read: int
    stale: int
    dropped: list[list[str]]


@dataclass(slots=True)
class _Kept:
    """The changed keys of one table, and the commit time of its worker's last step."""

    table: str
    memory: ChangedKeys
    heard_at_us: int


class ChangedKeyTracker:
    """The changed keys of all running backfills, by id."""

    def __init__(self) -> None:
        """Start with no backfill."""
        self._kept: dict[str, _Kept] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no backfill needs reports of changes."""
        return not self._kept

    @property
    def size(self) -> int:
        """The bytes of all changed keys."""
        return sum(kept.memory.size for kept in self._kept.values())

    def begin(self, step: BeginBackfill, *, at_us: int) -> bool:
        """Begin to remember the keys that change in a table from here on, under a new id.

        Returns False, and begins nothing, if the id exists or if too many ids exist.
        """
        self.expire(at_us)
        if step.memory in self._kept or len(self._kept) >= _MAX_MEMORIES:
            return False
        self._kept[step.memory] = _Kept(step.table, ChangedKeys(), at_us)
        return True

    def renew(self, step: KeepChangedKeys, *, at_us: int) -> bool:
        """Keep the changed keys of a worker that lives.

        Returns False if this term of capture does not have them, or has given them up. It does not
        begin new ones: an empty set would admit rows that have changed before.
        """
        kept = self._kept.get(step.memory)
        if kept is None or kept.memory.is_void:
            return False
        kept.heard_at_us = at_us
        return True

    def end(self, step: EndBackfill) -> None:
        """Forget the changed keys that a step names."""
        self._kept.pop(step.memory, None)

    def expire(self, at_us: int) -> None:
        """Forget the changed keys of workers that were silent for ten minutes before `at_us`."""
        for kept in self._kept.values():
            # If the server's clock was set back, count the silence from this time on.
            kept.heard_at_us = min(kept.heard_at_us, at_us)
        silent = [m for m, kept in self._kept.items() if at_us - kept.heard_at_us > SILENCE_US]
        for memory in silent:
            del self._kept[memory]

    def remember_rows(
        self, rows: pa.RecordBatch, xids: Xids, relations: Mapping[int, Relation]
    ) -> None:
        """Remember the keys of decoded rows; `xids` has the transaction id of each row."""
        for kept in self._kept.values():
            own = pc.equal(rows.column("table"), kept.table)
            if not own.true_count:
                continue
            chosen, own_xids = rows.filter(own), xids[_to_flags(own)]
            for version in chosen.column("relation_version").unique().to_pylist():
                same = pc.equal(chosen.column("relation_version"), version)
                of_version = own_xids[_to_flags(same)]
                _remember(kept.memory, chosen.filter(same), of_version, relations[version].key)
        while self.size > MEMORY_BYTES:
            max(self._kept.values(), key=lambda kept: kept.memory.size).memory.give_up()

    def remember_truncate(self, table: str, xid: int) -> None:
        """Remember that a transaction emptied a table."""
        for kept in self._kept.values():
            if kept.table == table:
                kept.memory.remember_emptied([xid])

    def admit(self, step: Watermark, chunk: Chunk, *, at_us: int) -> Admitted | None:
        """Return the current rows of a chunk; None if it is void: its changed keys are missing."""
        kept = self._kept.get(step.memory)
        if kept is None or kept.memory.is_void or kept.table != str(chunk.relation.table):
            return None
        kept.heard_at_us = at_us
        key = chunk.relation.key
        values, stale = _split_current(chunk.values, key, kept.memory, step.snapshot)
        absent, back = _split_current(_list_absent(chunk), key, kept.memory, step.snapshot)
        kept.memory.forget(step.oldest)
        rows = _make_entries(chunk.relation, values, absent)
        dropped = list_keys(stale, key) + list_keys(back, key)
        return Admitted(rows, len(values), len(stale), dropped)


def list_keys(rows: pa.ChunkedArray, key: tuple[int, ...]) -> list[list[str]]:
    """The key of each row as texts; `key` has the indexes of the key's columns."""
    columns = [pc.list_element(rows, index).to_pylist() for index in key]
    return [list(texts) for texts in zip(*columns, strict=True)]


def _remember(memory: ChangedKeys, rows: pa.RecordBatch, xids: Xids, key: tuple[int, ...]) -> None:
    """Remember the old and new keys of rows; all keys of the table for a row without its key."""
    is_untold = _to_flags(pc.equal(rows.column("op"), Operation.UNDECODED.value))
    if not key:
        is_untold[:] = True
    memory.remember_emptied(set(xids[is_untold].tolist()))
    if not key:
        return
    for side in ("values", "old_values"):
        keys = _take_key(rows.column(side), key)
        is_told = keys.is_valid()
        memory.remember(xids[_to_flags(is_told)], keys.filter(is_told))


def _take_key(values: pa.ListArray | pa.ChunkedArray, key: tuple[int, ...]) -> Texts:
    """The key text of each row; null if a row has no values."""
    return join_key([pc.list_element(values, index) for index in key])


def _split_current(
    rows: pa.ChunkedArray, key: tuple[int, ...], memory: ChangedKeys, snapshot: Snapshot
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Split rows into current ones and stale ones.

    If no changed keys are remembered, no row is stale. Then this function does not read the keys.
    """
    if memory.is_empty:
        return rows, rows.slice(0, 0)
    is_current = memory.find_current(snapshot, _take_key(rows, key))
    if is_current.all():
        return rows, rows.slice(0, 0)
    return rows.filter(pa.array(is_current)), rows.filter(pa.array(~is_current))


def _list_absent(chunk: Chunk) -> pa.ChunkedArray:
    """The asked keys of a chunk that have no row, each as a row without other values."""
    if not chunk.asked:
        return chunk.values.slice(0, 0)
    width, key = len(chunk.relation.columns), chunk.relation.key
    rows: list[list[str | None]] = [[None] * width for _ in chunk.asked]
    for row, texts in zip(rows, chunk.asked, strict=True):
        for index, text in zip(key, texts, strict=True):
            row[index] = text
    found, asked = _take_key(chunk.values, key), pa.chunked_array([rows], chunk.values.type)
    return asked.filter(pc.invert(pc.is_in(_take_key(asked, key), value_set=found)))


def _make_entries(relation: Relation, values: pa.ChunkedArray, absent: pa.ChunkedArray) -> pa.Table:
    """Make the entries for the log: a read for each row, a delete for each absent key."""
    count = len(values) + len(absent)
    columns = {
        "table": pa.repeat(pa.scalar(str(relation.table)), count),
        "relation_version": pa.repeat(pa.scalar(relation.version, pa.int64()), count),
        "op": pa.repeat(pa.scalar(Operation.READ.value), count),
        "values": values,
    }
    if len(absent):
        operations = [Operation.READ.value] * len(values) + [Operation.DELETE.value] * len(absent)
        columns["op"] = pa.array(operations, pa.string())
        gone, come = pa.nulls(len(absent), values.type), pa.nulls(len(values), values.type)
        columns["values"] = pa.chunked_array([*values.chunks, gone])
        columns["old_values"] = pa.chunked_array([come, *absent.chunks])
    return pa.Table.from_arrays(
        [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type)
            for field in DECODED_SCHEMA
        ],
        schema=DECODED_SCHEMA,
    )


def _to_flags(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = pc.fill_null(array, pa.scalar(value=False)).to_numpy(
        zero_copy_only=False
    )
    return flags
