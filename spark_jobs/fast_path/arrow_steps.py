"""Turns one table's changes into steps by Arrow, as `fold.steps` does by Spark.

A step has no row of its own: it names the log entry whose image is its row. The image is the old
row of a delete, and the new row of any other change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.vocabulary import Operation
from spark_jobs.fast_path.rare_keys import Key, RareStep
from spark_jobs.fold.steps import ARRIVAL, DEPARTURE, RENEWAL
from spark_jobs.log.reading import POSITION
from spark_jobs.pg_types.arrow_rows import have_width, take_texts

Indexes = npt.NDArray[np.int64]

_TRANSACTION = list(POSITION[:2])


@dataclass(frozen=True, slots=True)
class ArrowSteps:
    """The steps of some log entries, in the order of the log.

    `table` has the key's texts in `names`, and the position; `kinds` and `entries` have an item
    for each step. `images` has the texts of each entry's row. `unsent` has the indexes of the
    columns that an entry lacks. `moves` says which departures are one half of a move.
    """

    table: pa.Table
    names: list[str]
    kinds: npt.NDArray[np.int8]
    entries: Indexes
    moves: npt.NDArray[np.bool_]
    images: pa.ListArray
    unsent: pa.ListArray

    def find_last(self) -> Indexes:
        """The last step of each key."""
        grouped = self._number().group_by(self.names, use_threads=False)
        return _as_indexes(grouped.aggregate([("step", "max")])["step_max"])

    def find_unclear(self, departures: Indexes) -> Indexes:
        """Those of some departures whose transaction also brought a row with the key."""
        arrivals = np.flatnonzero(self.kinds == ARRIVAL)
        if not len(departures) or not len(arrivals):
            return departures[:0]
        of = [*self.names, *_TRANSACTION]
        left = self.table.select(of).take(departures).append_column("step", pa.array(departures))
        brought = self.table.select(of).take(arrivals)
        found = left.join(brought, of, join_type="left semi", use_threads=False)
        return np.sort(_as_indexes(found["step"]))

    def find_unsent(self, arriving: Indexes) -> Indexes:
        """Those of some arrivals and renewals whose entry lacks a value."""
        lengths: Indexes = pc.fill_null(pc.list_value_length(self.unsent), 0).to_numpy()
        lacks: npt.NDArray[np.bool_] = lengths[self.entries[arriving]] > 0
        found: Indexes = arriving[lacks]
        return found

    def read_keys(self, steps: Indexes) -> list[Key]:
        """The keys of some steps."""
        columns = (self.table[name].take(pa.array(steps)).to_pylist() for name in self.names)
        return list(zip(*columns, strict=True))

    def list_rare(self, steps: Indexes, *, with_moved: bool) -> dict[Key, list[RareStep]]:
        """All steps of the keys of some steps, and of all moved rows if `with_moved`, by key.

        The log may repeat a change. The result has each step once.
        """
        half = np.flatnonzero(self.moves)
        left = dict(zip(self.entries[half].tolist(), self.read_keys(half), strict=True))
        if with_moved:
            whole = np.flatnonzero(np.isin(self.entries, self.entries[half]))
            steps = np.union1d(steps, whole)
        keys = self.table.select(self.names).take(pa.array(steps))
        found = self._number().join(keys, self.names, join_type="left semi", use_threads=False)
        own = np.sort(_as_indexes(found["step"]))
        entries = self.entries[own]
        positions = zip(
            *(self.table[name].take(pa.array(own)).to_pylist() for name in POSITION), strict=True
        )
        unsent = self.unsent.take(pa.array(entries)).to_pylist()
        listed: dict[Key, list[RareStep]] = {}
        for n, (key, position) in enumerate(zip(self.read_keys(own), positions, strict=True)):
            of_key, kind, entry = listed.setdefault(key, []), int(self.kinds[own[n]]), entries[n]
            if of_key and of_key[-1].position == position:
                continue
            origin = left.get(int(entry)) if kind == ARRIVAL else None
            lacks = frozenset(unsent[n] or ()) if kind != DEPARTURE else frozenset[int]()
            of_key.append(RareStep(int(own[n]), int(entry), kind, position, origin, lacks))
        return listed

    def _number(self) -> pa.Table:
        numbers = pa.array(np.arange(len(self.kinds)))
        return self.table.select(self.names).append_column("step", numbers)


def take_steps(log: pa.Table, width: int, key: Sequence[int]) -> ArrowSteps | None:
    """Turn log entries into steps; None if an entry has another width, or a NULL in its key.

    `key` has the indexes of the key columns.
    """
    op, values, old = (log[name].combine_chunks() for name in ("op", "values", "old_values"))
    unsent = log["unchanged"].combine_chunks()
    is_delete = pc.equal(op, Operation.DELETE.value)
    images = pc.if_else(is_delete, old, values)
    was = pc.and_(pc.invert(is_delete), old.is_valid())
    if not have_width(images, width) or not have_width(old.filter(was), width):
        return None
    texts = [take_texts(images, i, width) for i in key]
    kinds = np.full(len(op), RENEWAL, np.int8)
    kinds[_as_flags(pc.equal(op, Operation.INSERT.value))] = ARRIVAL
    kinds[_as_flags(is_delete)] = DEPARTURE
    names = [f"k{n}" for n in range(len(key))]
    entries, moves = np.arange(len(op)), np.zeros(len(op), dtype=bool)
    steps = pa.table(dict(zip(names, texts, strict=True)) | {name: log[name] for name in POSITION})
    moved, before = _find_moves(texts, old, was, key, width)
    if len(moved):
        kinds[moved] = ARRIVAL
        left = dict(zip(names, before, strict=True))
        left |= {name: log[name].take(pa.array(moved)) for name in POSITION}
        steps = pa.concat_tables([steps, pa.table(left, schema=steps.schema)])
        kinds = np.append(kinds, np.full(len(moved), DEPARTURE, np.int8))
        entries, moves = np.append(entries, moved), np.append(moves, np.ones(len(moved), bool))
    if any(steps[name].null_count for name in names):
        return None
    order = pc.sort_indices(steps, [(name, "ascending") for name in POSITION])
    n = order.to_numpy()
    return ArrowSteps(steps.take(order), names, kinds[n], entries[n], moves[n], images, unsent)


def _find_moves(
    texts: Sequence[pa.StringArray],
    old: pa.ListArray,
    was: pa.BooleanArray,
    key: Sequence[int],
    width: int,
) -> tuple[Indexes, list[pa.StringArray]]:
    """The entries that move a row to another key, and the texts of the keys that they leave."""
    rows = np.flatnonzero(_as_flags(was))
    if not len(rows):
        return rows, []
    before = [take_texts(old.take(pa.array(rows)), i, width) for i in key]
    differs = np.zeros(len(rows), dtype=bool)
    for own, other in zip(texts, before, strict=True):
        # A NULL in a key is refused later.
        differs |= _as_flags(pc.not_equal(own.take(pa.array(rows)), other), null=True)
    places = pa.array(np.flatnonzero(differs))
    return rows[differs], [other.take(places) for other in before]


def _as_flags(values: pa.BooleanArray, *, null: bool = False) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(values, null).to_numpy(zero_copy_only=False), dtype=bool)


def _as_indexes(column: pa.ChunkedArray) -> Indexes:
    return np.asarray(column.to_numpy(), dtype=np.int64)
