"""Converts log entries to table rows with Arrow, if Arrow can convert every text without loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.pg_types.arrow_texts import Convert, convert_plainly

_RAW = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """A column of a table, and the function that converts its texts.

    `kept_form` matches the texts that `_raw` keeps beside their value; None if it keeps none.
    """

    name: str
    convert: Convert
    kept_form: str | None = None


# The columns of a table, in order.
Columns: TypeAlias = Sequence[ArrowColumn]


def take_texts(values: pa.ListArray, index: int, width: int) -> pa.StringArray:
    """Return the texts of one column. Each list must have `width` texts."""
    texts = values.flatten()
    return texts.take(pa.array(np.arange(index, len(texts), width)))


def have_width(values: pa.ListArray, width: int) -> bool:
    """Whether no list is NULL and each has `width` texts."""
    return is_true_of_all(pc.equal(pc.list_value_length(values), width))


def is_true_of_all(found: pa.BooleanArray) -> bool:
    """Whether every entry is true. NULL counts as false."""
    return bool(pc.all(found, skip_nulls=False, min_count=0).as_py())


def make_rows(entries: pa.RecordBatch, columns: Columns) -> pa.RecordBatch | None:
    """Convert the `values` of entries to table rows; None if a text does not fit its type.

    Each entry must have one value for each column.
    """
    arrays: list[pa.Array] = []
    kept: list[_KeptTexts] = []
    for index, column in enumerate(columns):
        texts = take_texts(entries["values"], index, len(columns))
        typed = convert_plainly(column.convert, texts)
        if typed is None:
            return None
        arrays.append(typed)
        if column.kept_form is not None:
            kept.append(_find_kept(column.name, column.kept_form, texts))
    count = entries.num_rows
    own = {
        "_epoch": entries["epoch"],
        "_commit_lsn": entries["commit_lsn"],
        "_seq": entries["seq"],
        "_committed_at": entries["committed_at"],
        "_raw": _join_kept([one for one in kept if len(one.rows)], count),
        "_holes": pa.nulls(count, pa.list_(pa.field("element", pa.string()))),
    }
    return pa.RecordBatch.from_arrays(
        [*arrays, *own.values()], [*(column.name for column in columns), *own]
    )


@dataclass(frozen=True, slots=True)
class _KeptTexts:
    """The texts of a column that `_raw` keeps, and the indexes of their rows."""

    name: str
    rows: npt.NDArray[np.int64]
    texts: pa.StringArray


def _find_kept(name: str, form: str, texts: pa.StringArray) -> _KeptTexts:
    is_kept = pc.match_substring_regex(texts, form).fill_null(False)
    rows = np.flatnonzero(is_kept.to_numpy(zero_copy_only=False))
    return _KeptTexts(name, rows, texts.filter(is_kept))


def _join_kept(kept: Sequence[_KeptTexts], count: int) -> pa.MapArray:
    """Make `_raw` of `count` rows: the kept texts by column; NULL for a row without one."""
    if not kept:
        return pa.nulls(count, _RAW)
    rows = np.concatenate([one.rows for one in kept])
    names = pa.array([one.name for one in kept]).take(
        pa.array(np.repeat(np.arange(len(kept)), [len(one.rows) for one in kept]))
    )
    # The sort is stable, so the texts of a row stay in the order of the columns.
    order = pa.array(np.argsort(rows, kind="stable"))
    sizes = np.bincount(rows, minlength=count)
    offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    texts = pa.concat_arrays([one.texts for one in kept])
    return pa.MapArray.from_arrays(
        offsets, names.take(order), texts.take(order), type=_RAW, mask=pa.array(sizes == 0)
    )
