"""An upper bound, from the footer alone, for the memory that columns of a Parquet file take.

The footer has the size of the encoded values. A column with a dictionary stores each distinct value
once, and a run of one value takes a few bytes. So decoded rows may be a thousand times as large.
Source: Parquet documentation, "Encodings".
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Bytes of a decimal, the widest value of fixed width in Arrow.
_WIDEST = 16
# Bytes of an offset into texts, or of an index into a dictionary.
_OFFSET = 4


def bound_size(
    group: pq.RowGroupMetaData, columns: Collection[str], *, coded: Collection[str] = ()
) -> int:
    """An upper bound for the bytes that some columns of a row group take in memory.

    `columns` has the names of top-level columns. Arrow reads the `coded` ones as dictionaries.
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
    """Count the bytes that columns read as dictionaries take once each row has its own value."""
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
