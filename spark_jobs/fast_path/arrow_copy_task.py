"""A Spark task that types one table's reads by Arrow: files of the log in, one Parquet file out.

It runs in a Python worker. It types every wanted read or none. It gives up at a read with another
number of values than the table has columns, under another relation version, or below a sweep's
start; at a text that its type does not hold or give back; and at a row group that is too large.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.vocabulary import Operation, Position
from spark_jobs.delta.file_bounds import ColumnStatistics
from spark_jobs.lake.lake import Bound
from spark_jobs.log.entries import ROW_COLUMNS, is_above, is_inside, may_hold_table
from spark_jobs.pg_types.arrow_rows import Columns, have_width, is_true_of_all, make_rows

_MOST_GROUP_BYTES = 256 << 20
# Bytes. Typed rows stay in memory until they make a row group of about this size.
_GROUP_BYTES = 64 << 20
# A dictionary makes a column smaller if at most this share of its first values is distinct.
_FEW = 0.5


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


@dataclass(frozen=True, slots=True)
class TypedFile:
    """A file that no commit names yet: its row count, and its statistics in Delta's form."""

    path: Path
    rows: int
    statistics: str


class _CannotType(Exception):
    """Arrow cannot type one of the wanted reads."""


def type_files(sources: list[str], wanted: ReadsToType, folder: str) -> list[TypedFile] | None:
    """Write the wanted reads of some log files to one file; return no file if they have no read.

    None if Arrow cannot type every wanted read; then no file is left. Raises: OSError.
    """
    path = Path(folder) / f"part-{uuid.uuid4()}.parquet"
    try:
        file = _write(path, _type_rows(sources, wanted))
    except _CannotType:
        path.unlink(missing_ok=True)
        return None
    return [file] if file.rows else []


def _write(path: Path, typed: Iterator[pa.RecordBatch]) -> TypedFile:
    first = next(typed, None)
    if first is None:
        return TypedFile(path, 0, "")
    bounds, rows, waiting = ColumnStatistics(first.schema), 0, [first]
    with pq.ParquetWriter(path, first.schema, use_dictionary=_find_repeated(first)) as writer:
        bounds.add(first)
        for batch in typed:
            if sum(one.nbytes for one in waiting) + batch.nbytes > _GROUP_BYTES:
                rows += _write_group(writer, waiting)
                waiting = []
            waiting.append(batch)
            bounds.add(batch)
        rows += _write_group(writer, waiting)
    return TypedFile(path, rows, bounds.format())


def _write_group(writer: pq.ParquetWriter, batches: list[pa.RecordBatch]) -> int:
    group = pa.Table.from_batches(batches)
    writer.write_table(group, row_group_size=max(1, group.num_rows))
    return int(group.num_rows)


def _find_repeated(rows: pa.RecordBatch) -> list[str]:
    """The columns whose values often repeat."""
    flat = [
        name for name in rows.schema.names if not pa.types.is_nested(rows.schema.field(name).type)
    ]
    return [
        name
        for name in flat
        if pc.count_distinct(rows.column(name)).as_py() <= _FEW * rows.num_rows
    ]


def _type_rows(sources: list[str], wanted: ReadsToType) -> Iterator[pa.RecordBatch]:
    for source in sources:
        with pq.ParquetFile(source) as log:
            for index in range(log.num_row_groups):
                group = log.metadata.row_group(index)
                if not may_hold_table(group, wanted.table):
                    continue
                if group.total_byte_size > _MOST_GROUP_BYTES:
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
