"""Entries of the log to rows of a table by Arrow, where every text is plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.arrow_texts import Convert, convert_plainly

# A table's columns, in order, with their ways to be read.
Columns: TypeAlias = Sequence[tuple[str, Convert]]


def take_texts(values: pa.ListArray, index: int, width: int) -> pa.StringArray:
    """The texts of one column, of lists that all have a text for each."""
    texts = values.flatten()
    return texts.take(pa.array(np.arange(index, len(texts), width)))


def have_width(values: pa.ListArray, width: int) -> bool:
    """Whether all lists are there, and have so many texts."""
    return is_true_of_all(pc.equal(pc.list_value_length(values), width))


def is_true_of_all(found: pa.BooleanArray) -> bool:
    """Whether something is true of every entry; of NULL it is not."""
    return bool(pc.all(found, skip_nulls=False, min_count=0).as_py())


def make_rows(entries: pa.RecordBatch, columns: Columns) -> pa.RecordBatch | None:
    """The rows that some entries have as `values`; None where a text is not plain.

    All have as many values as there are columns.
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
