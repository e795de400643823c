"""The Arrow fold: folds changes to one row for each key, with the same result as `fold`.

The last step of a key decides, except for keys that `rare_keys` folds one by one:

- The last step is a departure, and its transaction also brought a row with the key.
- The source did not send a value of the last step's row. The value is in an earlier entry, or in a
  row of the table.

The result is None if the changes do not decide a key, or if Arrow cannot convert a text exactly.
Then Spark must fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.fast_path.arrow_steps import ArrowSteps, Indexes, take_steps
from spark_jobs.fast_path.rare_keys import (
    Key,
    OldRow,
    RareKey,
    RareStep,
    find_values,
    fold_departed,
)
from spark_jobs.fold.steps import DEPARTURE
from spark_jobs.log.reading import POSITION
from spark_jobs.pg_types.arrow_rows import Columns, make_rows
from spark_jobs.pg_types.arrow_texts import convert_plainly


@dataclass(frozen=True, slots=True)
class CarriedValues:
    """The values of one column that arriving rows take from rows of the table.

    `rows` has the indexes of the arriving rows. `roots` has, for each of them, the key of the
    table's row, in the key columns by name.
    """

    column: str
    rows: Indexes
    roots: pa.Table


@dataclass(frozen=True, slots=True)
class ArrowOutcome:
    """The rows that arrive, in the table's columns, and the keys that departed.

    `gone` has the key columns by name, and the position of each departure in `_epoch`,
    `_commit_lsn` and `_seq`, as the rows have theirs. `undecided` has the same columns for keys
    that have no row if the table has none. If the table has one, the outcome is not valid. Values
    in `carried` are NULL in `rows`.
    """

    rows: pa.Table
    gone: pa.Table
    undecided: pa.Table
    carried: tuple[CarriedValues, ...] = ()


@dataclass(slots=True)
class _Decided:
    """The steps whose rows arrive, the departures of gone and of undecided keys.

    `values` has, for an arriving step that lacks values, where these are.
    """

    arriving: Indexes
    gone: list[int] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    values: dict[int, Mapping[int, int | Key]] = field(default_factory=dict)


def fold_by_arrow(
    entries: pa.Table, columns: Columns, key: tuple[int, ...], *, has_whole_old: bool = False
) -> ArrowOutcome | None:
    """Fold row changes of one table, in any order; None if Spark must fold them.

    `key` has the indexes of the columns that identify a row; their types must be exact.
    `has_whole_old`: the source may have sent whole old rows (replica identity FULL).
    """
    steps = take_steps(entries, len(columns), key)
    decided = None if steps is None else _decide(steps, has_whole_old=has_whole_old)
    if steps is None or decided is None:
        return None
    rows = _make_rows(entries, steps, decided, columns)
    gone = _name_keys(steps, decided.gone, columns, key)
    undecided = _name_keys(steps, decided.undecided, columns, key)
    carried = _list_carried(decided, columns, key)
    if rows is None or gone is None or undecided is None or carried is None:
        return None
    return ArrowOutcome(rows, gone, undecided, carried)


def _decide(steps: ArrowSteps, *, has_whole_old: bool) -> _Decided | None:
    """Decide which row each key has at the end; None if the changes do not decide."""
    last = steps.find_last()
    is_gone = steps.kinds[last] == DEPARTURE
    arriving, gone = last[~is_gone], last[is_gone]
    unclear, unsent = steps.find_unclear(gone), steps.find_unsent(arriving)
    decided = _Decided(arriving, gone[~np.isin(gone, unclear)].tolist())
    if not len(unclear) and not len(unsent):
        return decided
    if has_whole_old:
        # The whole old rows decide which row departed, and capture has no unsent value of them.
        return None
    rare = steps.list_rare(np.append(unclear, unsent), with_moved=bool(len(unsent)))
    kept: list[int] = []
    for departure, key in zip(unclear.tolist(), steps.read_keys(unclear), strict=True):
        match fold_departed(rare[key]):
            case RareStep() as step:
                if step.unsent:
                    return None
                kept.append(step.index)
            case OldRow.REMOVED:
                decided.gone.append(departure)
            case OldRow.STAYS:
                decided.undecided.append(departure)
    keys = {key: RareKey(of_key) for key, of_key in rare.items()} if len(unsent) else {}
    for arrival, key in zip(unsent.tolist(), steps.read_keys(unsent), strict=True):
        values = find_values(key, rare[key][-1].unsent, keys)
        if values is None:
            return None
        decided.values[arrival] = values
    decided.arriving = np.append(arriving, np.array(kept, dtype=np.int64))
    return decided


def _make_rows(
    log: pa.Table, steps: ArrowSteps, decided: _Decided, columns: Columns
) -> pa.Table | None:
    """The arriving rows, typed; None if Arrow cannot convert a text exactly."""
    width = len(columns)
    chosen = pa.array(steps.entries[decided.arriving])
    images = steps.images.take(chosen)
    if decided.values:
        is_lacking = np.zeros(len(images) * width, dtype=bool)
        sources: list[int | None] = []
        for row, step in enumerate(decided.arriving.tolist()):
            for column, source in sorted(decided.values.get(step, {}).items()):
                is_lacking[row * width + column] = True
                sources.append(source * width + column if isinstance(source, int) else None)
        texts = steps.images.flatten().take(pa.array(sources, pa.int64()))
        images = _replace_texts(images, pa.array(is_lacking), texts, width)
    own = {name: log[name].take(chosen).combine_chunks() for name in (*POSITION, "committed_at")}
    rows = make_rows(pa.RecordBatch.from_pydict(own | {"values": images}), columns)
    return None if rows is None else pa.Table.from_batches([rows])


def _replace_texts(
    images: pa.ListArray, mask: pa.BooleanArray, texts: pa.StringArray, width: int
) -> pa.ListArray:
    """Replace the texts of rows where `mask`, which has an item for each text, is true."""
    flat = pc.replace_with_mask(images.flatten(), mask, texts)
    return pa.ListArray.from_arrays(
        pa.array(np.arange(0, len(flat) + 1, width, dtype=np.int32)), flat
    )


def _name_keys(
    steps: ArrowSteps, departures: list[int], columns: Columns, key: tuple[int, ...]
) -> pa.Table | None:
    """The typed keys and the positions of some departures."""
    chosen = steps.table.take(pa.array(departures, pa.int64()))
    keys = [chosen[name].combine_chunks() for name in steps.names]
    typed = _convert_keys(keys, columns, key)
    if typed is None:
        return None
    return pa.table(typed | {f"_{name}": chosen[name] for name in POSITION})


def _list_carried(
    decided: _Decided, columns: Columns, key: tuple[int, ...]
) -> tuple[CarriedValues, ...] | None:
    """The values that arriving rows take from the table, by column."""
    found: dict[int, list[tuple[int, Key]]] = {}
    for row, step in enumerate(decided.arriving.tolist()):
        for column, source in decided.values.get(step, {}).items():
            if not isinstance(source, int):
                found.setdefault(column, []).append((row, source))
    carried = []
    for column, pairs in sorted(found.items()):
        texts = [pa.array([root[n] for _, root in pairs], pa.string()) for n in range(len(key))]
        roots = _convert_keys(texts, columns, key)
        if roots is None:
            return None
        rows = np.array([row for row, _ in pairs], dtype=np.int64)
        carried.append(CarriedValues(columns[column].name, rows, pa.table(roots)))
    return tuple(carried)


def _convert_keys(
    texts: list[pa.StringArray], columns: Columns, key: tuple[int, ...]
) -> dict[str, pa.Array] | None:
    """Key columns by name from their texts; None if Arrow cannot convert one exactly."""
    typed: dict[str, pa.Array] = {}
    for i, own in zip(key, texts, strict=True):
        values = convert_plainly(columns[i].convert, own)
        if values is None:
            return None
        typed[columns[i].name] = values
    return typed
