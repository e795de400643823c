"""The entries of a range of the log in memory, where they are few: read by Arrow, without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.decoded_size import bound_size
from spark_jobs.lake import Bound
from spark_jobs.log_entries import ROW_COLUMNS, is_inside, may_hold_table, naming
from spark_jobs.log_files import LogRange

_COLUMNS = [*ROW_COLUMNS, "unchanged", "old_values"]
# These columns have few distinct values, so Arrow reads them as dictionaries.
_CODED = ["table", "op"]
# What is held at once, as it is in memory.
_MOST_BYTES = 64 << 20
# Files of this size together are read once for all tables: each takes 2 ms to open.
_SHARED_BYTES = 4 << 20


class LittleLog:
    """A range of the log, of which one table's entries are taken at a time."""

    def __init__(self, whole: LogRange) -> None:
        """Nothing is read yet."""
        self._range = whole

    def take(self, table: str, high: Bound) -> pa.Table | None:
        """The entries of a table up to a bound of the range.

        None where they are too large to be held, or files do not hold entries as they are.
        Raises: LakeError if a file cannot be read.
        """
        read = self.entries
        if read is None:
            files = self._range.find_files(table)
            read = None if files is None else _read(files, table)
        if read is None:
            return None
        own = pc.equal(read["table"], table)
        return read.filter(pc.and_(own, is_inside(read, self._range.low, high)))

    @cached_property
    def entries(self) -> pa.Table | None:
        """All entries of the range; None where they are not read for all tables at once."""
        files = self._range.find_files()
        if files is None or sum(files.values()) > _SHARED_BYTES:
            return None
        if (read := _read(files, None)) is None:
            return None
        return read.filter(is_inside(read, self._range.low, self._range.high))


def _read(files: Iterable[Path], table: str | None) -> pa.Table | None:
    """The entries of a table, or of all tables; None where they are too large to be held."""
    size = 0
    read: list[pa.Table] = []
    for path in files:
        with naming(path), pq.ParquetFile(path, read_dictionary=_CODED) as file:
            for index in range(file.num_row_groups):
                group = file.metadata.row_group(index)
                if table is not None and not may_hold_table(group, table):
                    continue
                if size + bound_size(group, _COLUMNS, coded=_CODED) > _MOST_BYTES:
                    return None
                rows = file.read_row_group(index, columns=_COLUMNS, use_threads=False)
                # A few changes of a table may lie among very many rows of another.
                kept = rows if table is None else rows.filter(pc.equal(rows["table"], table))
                size += kept.nbytes
                read.append(kept)
    return pa.concat_tables(read) if read else None
