"""The Arrow fold: folds a few changes to one row for each key, as `fold` does.

It works only if the last change of each key decides everything: each value was sent, no row moved
to another key, no transaction brought a row and ended without its key, and Arrow can convert each
text exactly. Otherwise the result is None, and Spark must fold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.vocabulary import Operation
from spark_jobs.log.reading import POSITION
from spark_jobs.pg_types.arrow_rows import Columns, have_width, make_rows, take_texts
from spark_jobs.pg_types.arrow_texts import convert_plainly

_TRANSACTION = list(POSITION[:2])


@dataclass(frozen=True, slots=True)
class ArrowOutcome:
    """The rows that arrive, in the table's columns, and the keys that departed.

    `gone` has the key columns by name, and the position of each departure in `_epoch`,
    `_commit_lsn` and `_seq`, as the rows have theirs.
    """

    rows: pa.Table
    gone: pa.Table


def fold_by_arrow(entries: pa.Table, columns: Columns, key: tuple[int, ...]) -> ArrowOutcome | None:
    """Fold row changes of one table, in any order; None if the last change does not decide.

    `key` has the indexes of the columns that identify a row; their types must be exact.
    """
    images = _find_images(entries, len(columns), key)
    if images is None:
        return None
    names = [f"k{i}" for i in range(len(key))]
    changes = pa.table(
        {name: take_texts(images, i, len(columns)) for name, i in zip(names, key, strict=True)}
        | {"op": entries["op"].cast(pa.string())}
        | {name: entries[name] for name in POSITION}
    )
    if any(changes[name].null_count for name in names):
        return None
    order = pc.sort_indices(changes, [(name, "ascending") for name in POSITION])
    changes = changes.take(order).append_column("place", pa.array(np.arange(len(order))))
    last = changes.group_by(names, use_threads=False).aggregate([("place", "max")])["place_max"]
    is_gone = pc.equal(changes["op"].take(last), Operation.DELETE.value)
    gone = changes.take(last.filter(is_gone))
    if _were_brought(changes, gone, names):
        return None
    arriving = entries.take(order.take(last.filter(pc.invert(is_gone))))
    rows = make_rows(_join(arriving), columns)
    keys = [convert_plainly(columns[i][1], _join(gone)[n]) for n, i in zip(names, key, strict=True)]
    if rows is None or any(one is None for one in keys):
        return None
    departed = dict(zip((columns[i][0] for i in key), keys, strict=True))
    departed |= {f"_{name}": gone[name] for name in POSITION}
    return ArrowOutcome(pa.Table.from_batches([rows]), pa.table(departed))


def _join(rows: pa.Table) -> pa.RecordBatch:
    """Return all rows in one batch."""
    columns = [column.combine_chunks() for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _find_images(entries: pa.Table, width: int, key: tuple[int, ...]) -> pa.ListArray | None:
    """Return the texts of each entry's row: those before a delete, those after any other change.

    None if an entry lacks a value or moves its row to another key.
    """
    op, values, old = (entries[name].combine_chunks() for name in ("op", "values", "old_values"))
    if pc.any(pc.greater(pc.list_value_length(entries["unchanged"]), 0)).as_py():
        return None
    is_delete = pc.equal(op, Operation.DELETE.value)
    images = pc.if_else(is_delete, old, values)
    if not have_width(images, width):
        return None
    was = pc.and_(pc.invert(is_delete), old.is_valid())
    before, after = old.filter(was), images.filter(was)
    if not have_width(before, width):
        return None
    stays = all(take_texts(before, i, width).equals(take_texts(after, i, width)) for i in key)
    return images if stays else None


def _were_brought(changes: pa.Table, gone: pa.Table, names: list[str]) -> bool:
    """Whether a transaction inserted a row and ended without the row's key.

    It is then not known which of two rows with that key it deleted.
    """
    brought = changes.filter(pc.equal(changes["op"], Operation.INSERT.value))
    of = [*names, *_TRANSACTION]
    if not brought.num_rows or not gone.num_rows:
        return False
    return bool(gone.select(of).join(brought.select(of), of, join_type="left semi").num_rows)
