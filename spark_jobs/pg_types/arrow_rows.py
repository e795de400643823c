"""Converts log entries to table rows with Arrow, if Arrow can convert every text without loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.pg_types.arrow_texts import Convert, convert_plainly

# The name of each column of a table, in order, and the function that converts its texts.
Columns: TypeAlias = Sequence[tuple[str, Convert]]


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
    """Convert the `values` of entries to table rows; None if a text cannot be converted exactly.

    Each entry must have one value for each column.
    """
    arrays: list[pa.Array] = []
    for index, (_, convert) in enumerate(columns):
        typed = convert_plainly(convert, take_texts(entries["values"], index, len(columns)))
        if typed is None:
            return None
        arrays.append(typed)
    count = entries.num_rows
    own = {
        "_epoch": entries["epoch"],
        "_commit_lsn": entries["commit_lsn"],
        "_seq": entries["seq"],
        "_committed_at": entries["committed_at"],
        "_raw": pa.nulls(count, pa.map_(pa.string(), pa.string())),
        "_holes": pa.nulls(count, pa.list_(pa.field("element", pa.string()))),
    }
    return pa.RecordBatch.from_arrays(
        [*arrays, *own.values()], [*(name for name, _ in columns), *own]
    )
