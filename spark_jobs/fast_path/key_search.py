"""Finds the rows of a table's files that have one of some keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_storage.arrow_files import open_input, read_footer
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.decoded_size import bound_size, count_decoded, list_coded
from spark_jobs.delta.file_bounds import is_reliable

# The most bytes that one row group takes in memory.
_MAX_GROUP_BYTES = 256 << 20


class Refusal(Exception):
    """Arrow cannot do the work, and Spark must; the argument says why."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table: its size in bytes, and the least and greatest value of the first key."""

    name: str
    size: int
    least: object
    greatest: object
    has_deletions: bool


class KeySearch:
    """Some keys to look for, each with its index."""

    def __init__(self, keys: pa.Table) -> None:
        """Take the keys: a table of the key columns, in their order."""
        self._names = keys.column_names
        places = pa.array(np.arange(keys.num_rows))
        self._keys = keys.append_column("_place", places)
        self._first = keys.column(0).combine_chunks()

    def may_be_in(self, file: TableFile) -> bool:
        """Whether, by its statistics, a file may have one of the keys."""
        least, greatest = file.least, file.greatest
        if not (is_reliable(least) and is_reliable(greatest)):
            return True
        kind = self._first.type
        inside = pc.and_(
            pc.greater_equal(self._first, pa.scalar(least, kind)),
            pc.less_equal(self._first, pa.scalar(greatest, kind)),
        )
        return bool(pc.any(inside, min_count=0).as_py())

    def is_in(self, file: LakePlace) -> bool:
        """Whether a file has one of the keys."""
        with open_input(file) as source, pq.ParquetFile(source) as read:
            for index in range(read.num_row_groups):
                keys = read.read_row_group(index, columns=self._names, use_threads=False)
                if self.find(keys).num_rows:
                    return True
        return False

    def find(self, rows: pa.Table) -> pa.Table:
        """Find the keys among some rows: `_row` is the index of a row, `_place` that of its key."""
        keys = rows.select(self._names)
        first = keys.column(0)
        near = pc.indices_nonzero(pc.is_in(first, value_set=self._first.cast(first.type)))
        if not len(near):
            return pa.table({"_row": near, "_place": pa.array([], pa.int64())})
        keys = keys.take(near).cast(self._keys.select(self._names).schema)
        own = keys.append_column("_row", near)
        return own.join(self._keys, self._names, join_type="inner", use_threads=False)


def require_memory(path: LakePlace, schema: pa.Schema) -> None:
    """Check that each row group of a table's file fits in memory. Raises: Refusal."""
    metadata = read_footer(path)
    names, coded = _choose_columns(metadata, schema)
    for index in range(metadata.num_row_groups):
        if bound_size(metadata.row_group(index), names, coded=coded) > _MAX_GROUP_BYTES:
            raise Refusal("a row group of a file does not fit in memory")


def read_groups(
    path: LakePlace, schema: pa.Schema, *, all_columns: pa.Schema
) -> Iterator[pa.Table]:
    """Read some columns of a table's file, by row group; `all_columns` are those of the table.

    Raises: Refusal.
    """
    metadata = read_footer(path)
    if not {*metadata.schema.to_arrow_schema().names} <= {*all_columns.names}:
        raise Refusal("a file has other columns than the table")
    names, coded = _choose_columns(metadata, schema)
    with (
        open_input(path) as source,
        pq.ParquetFile(source, metadata=metadata, read_dictionary=coded) as file,
    ):
        for index in range(file.num_row_groups):
            size = bound_size(metadata.row_group(index), names, coded=coded)
            rows = None
            if size <= _MAX_GROUP_BYTES:
                rows = file.read_row_group(index, columns=names, use_threads=False)
            if rows is None or size + count_decoded(rows, coded) > _MAX_GROUP_BYTES:
                raise Refusal("a row group of a file does not fit in memory")
            for field in schema:
                # A column that is newer than the file is NULL in its rows.
                if field.name not in names:
                    rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            yield rows.select(schema.names).cast(schema)


def _choose_columns(metadata: pq.FileMetaData, schema: pa.Schema) -> tuple[list[str], list[str]]:
    """The columns of a schema that a file has, and those of them that it keeps as dictionaries."""
    own = metadata.schema.to_arrow_schema().names
    coded = [name for name in list_coded(metadata) if name in schema.names]
    return [name for name in schema.names if name in own], coded
