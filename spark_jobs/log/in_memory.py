"""Holds the entries of a small log range in memory, read by Arrow, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.decoded_size import bound_size
from spark_jobs.lake.lake import Bound
from spark_jobs.log.entries import ROW_COLUMNS, is_inside, may_hold_table, naming

_COLUMNS = [*ROW_COLUMNS, "unchanged", "old_values"]
# These columns have few distinct values, so Arrow reads them as dictionaries.
_CODED = ["table", "op"]
# The most bytes that entries take in memory at once.
MAX_BYTES = 128 << 20
# If the files are at most this large together, they are read once for all tables: to open one takes
# 2 ms.
SHARED_BYTES = 4 << 20


class LogInMemory:
    """The files of a log range, from which callers take the entries of one table at a time."""

    def __init__(
        self,
        files: Mapping[LakePlace, int],
        low: Bound | None,
        high: Bound,
        *,
        shared_bytes: int = SHARED_BYTES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Read nothing yet. `files` has the size of each file of the range."""
        self._files, self._low, self._high = files, low, high
        self._shared_bytes, self._max_bytes = shared_bytes, max_bytes

    def take(self, table: str, high: Bound, files: Iterable[LakePlace]) -> pa.Table | None:
        """Return the entries of a table up to a bound in the range; `files` may have entries of it.

        None if they are too large for memory, or if no row group can have entries of the table.
        Raises: LakeError if a file cannot be read.
        """
        read = self.entries
        if read is None:
            read = _read(files, table, self._max_bytes)
        if read is None:
            return None
        own = pc.equal(read["table"], table)
        return read.filter(pc.and_(own, is_inside(read, self._low, high)))

    @cached_property
    def entries(self) -> pa.Table | None:
        """All entries of the range; None if they are not read once for all tables."""
        if sum(self._files.values()) > self._shared_bytes:
            return None
        if (read := _read(self._files, None, self._max_bytes)) is None:
            return None
        return read.filter(is_inside(read, self._low, self._high))


def _read(files: Iterable[LakePlace], table: str | None, max_bytes: int) -> pa.Table | None:
    """Read the entries of a table, or of all tables; None if there are none or too many."""
    size = 0
    read: list[pa.Table] = []
    for path in files:
        with (
            naming(path),
            open_input(path) as source,
            pq.ParquetFile(source, read_dictionary=_CODED) as file,
        ):
            for index in range(file.num_row_groups):
                group = file.metadata.row_group(index)
                if table is not None and not may_hold_table(group, table):
                    continue
                if size + bound_size(group, _COLUMNS, coded=_CODED) > max_bytes:
                    return None
                rows = file.read_row_group(index, columns=_COLUMNS, use_threads=False)
                # A few changes of one table may lie among very many rows of another table.
                kept = rows if table is None else rows.filter(pc.equal(rows["table"], table))
                size += kept.nbytes
                read.append(kept)
    return pa.concat_tables(read) if read else None
