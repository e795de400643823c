"""How many bytes the columns of a Parquet file take in memory: a bound from its footer alone.

A row group's own size is that of its encoded values. A column with a dictionary has each distinct
value once, and runs of one value take a few bytes, so that decoded rows may be a thousand times as
large. Source: Parquet documentation, "Encodings".
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# No value of a type of fixed width is wider in Arrow: a decimal.
_WIDEST = 16
# Where a text begins, or which of a dictionary's values it is.
_OFFSET = 4


def bound_size(
    group: pq.RowGroupMetaData, columns: Collection[str], *, coded: Collection[str] = ()
) -> int:
    """The most bytes that some columns of a row group take in memory.

    Columns are named without what is inside them. Those that are `coded` are read as dictionaries.
    """
    return sum(
        _bound_column(column, is_coded=_name(column) in coded)
        for column in map(group.column, range(group.num_columns))
        if _name(column) in columns
    )


def list_coded(metadata: pq.FileMetaData) -> list[str]:
    """The flat columns of texts and bytes that have a dictionary in some row group of a file."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    found = [
        column.path_in_schema
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page
    ]
    return sorted({path for path in found if "." not in path})


def count_decoded(rows: pa.Table, names: Collection[str]) -> int:
    """The bytes that columns take, read as dictionaries, once each row has its value in full."""
    return sum(
        pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices), min_count=0).as_py()
        + _OFFSET * len(chunk)
        for name in names
        for chunk in rows[name].chunks
    )


def _name(column: pq.ColumnChunkMetaData) -> str:
    return str(column.path_in_schema).partition(".")[0]


def _bound_column(column: pq.ColumnChunkMetaData, *, is_coded: bool) -> int:
    if column.physical_type != "BYTE_ARRAY":
        return int(column.num_values * _WIDEST)
    size = int(column.total_uncompressed_size + column.num_values * _OFFSET)
    if is_coded or not column.has_dictionary_page:
        return size
    # Any value may be as large as the whole dictionary.
    known = column.statistics
    nulls = known.null_count if known is not None and known.has_null_count else 0
    return size + int((column.num_values - nulls) * column.total_uncompressed_size)
