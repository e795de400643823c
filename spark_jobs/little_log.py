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
    """The row groups that may hold entries of a table, or of any; None where they are too large."""
    size = 0
    read: list[pa.Table] = []
    for path in files:
        with naming(path), pq.ParquetFile(path, read_dictionary=_CODED) as file:
            groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
            wanted = [
                index
                for index, group in enumerate(groups)
                if table is None or may_hold_table(group, table)
            ]
            size += sum(bound_size(groups[index], _COLUMNS, coded=_CODED) for index in wanted)
            if size > _MOST_BYTES:
                return None
            read.append(file.read_row_groups(wanted, columns=_COLUMNS, use_threads=False))
    return pa.concat_tables(read) if read else None
