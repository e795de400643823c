"""A Spark task that types one table's reads by Arrow: files of the log in, one Parquet file out.

It runs in a Python worker. It types every wanted read or none. It gives up at a read with another
number of values than the table has columns, under another relation version, or below a sweep's
start; at a text that does not fit its type; and at a row group that is too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Operation, Position
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.file_writer import WrittenFile, write_batches
from spark_jobs.lake.lake import Bound
from spark_jobs.log.entries import ROW_COLUMNS, is_above, is_inside, may_hold_table
from spark_jobs.pg_types.arrow_rows import Columns, have_width, is_true_of_all, make_rows

_MAX_GROUP_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ReadsToType:
    """The reads to type: those of a table above `low` and up to `high`, under one relation version.

    `columns` are the table's columns in order, with their conversions. No read may have a position
    below `start`.
    """

    table: str
    low: Bound | None
    high: Bound
    relation_version: int
    columns: Columns
    start: Position | None


class _CannotType(Exception):
    """Arrow cannot type one of the wanted reads."""


def type_files(
    sources: list[LakePlace], wanted: ReadsToType, attempt: Attempt
) -> list[WrittenFile] | None:
    """Write the wanted reads of some log files to one file; return no file if they have no read.

    None if Arrow cannot type every wanted read; then no file is left. Raises: OSError.
    """
    try:
        file = write_batches(attempt, _type_rows(sources, wanted))
    except _CannotType:
        return None
    return [] if file is None else [file]


def _type_rows(sources: list[LakePlace], wanted: ReadsToType) -> Iterator[pa.RecordBatch]:
    for source in sources:
        with open_input(source) as file, pq.ParquetFile(file) as log:
            for index in range(log.num_row_groups):
                group = log.metadata.row_group(index)
                if not may_hold_table(group, wanted.table):
                    continue
                if group.total_byte_size > _MAX_GROUP_BYTES:
                    raise _CannotType
                entries = log.read_row_group(index, columns=ROW_COLUMNS, use_threads=False)
                is_wanted = _is_wanted(entries, wanted)
                # Most row groups have only wanted reads: these need no copy.
                own = entries if is_true_of_all(is_wanted) else entries.filter(is_wanted)
                own = own.combine_chunks()
                for batch in own.to_batches():
                    yield _type(batch, wanted)


def _is_wanted(entries: pa.Table, wanted: ReadsToType) -> pa.ChunkedArray:
    own = pc.and_(
        pc.equal(entries["op"], Operation.READ.value), pc.equal(entries["table"], wanted.table)
    )
    return pc.and_(own, is_inside(entries, wanted.low, wanted.high))


def _type(reads: pa.RecordBatch, wanted: ReadsToType) -> pa.RecordBatch:
    """Convert reads to rows of the table. Raises: _CannotType."""
    is_plain = have_width(reads["values"], len(wanted.columns)) and is_true_of_all(
        pc.equal(reads["relation_version"], wanted.relation_version)
    )
    if (start := wanted.start) is not None:
        position = [reads["epoch"], reads["commit_lsn"], reads["seq"]]
        least = [start.epoch, int(start.commit_lsn), start.seq - 1]
        is_plain = is_plain and is_true_of_all(is_above(position, least))
    rows = make_rows(reads, wanted.columns) if is_plain else None
    if rows is None:
        raise _CannotType
    return rows
