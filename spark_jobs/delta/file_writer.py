"""Writes batches of rows to one Parquet file, with the statistics that Delta keeps of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_storage.arrow_files import open_output
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.file_bounds import ColumnStatistics

# Bytes. Rows stay in memory until they make a row group of about this size.
_GROUP_BYTES = 64 << 20
# A dictionary makes a column smaller if at most this share of its first values is distinct.
_MAX_DISTINCT_SHARE = 0.5
_SAMPLED_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that no commit names yet: its row count, and its statistics in Delta's form."""

    path: LakePlace
    rows: int
    statistics: str

    def may_hold(self, column: str) -> bool:
        """Whether the file may have a value in a column, by its statistics; True without them."""
        known = json.loads(self.statistics)
        return bool(known["nullCount"].get(column) != known["numRecords"])


def write_batches(attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> WrittenFile | None:
    """Write batches of one schema to a new file of an attempt; None without rows.

    If the batches raise an error, no file is left. Raises: OSError.
    """
    path = attempt.name_file()
    groups = _group(batches)
    first = [*islice(groups, 1)]
    if not first:
        return None
    schema, repeated = first[0].schema, _find_repeated(first[0].slice(0, _SAMPLED_ROWS))
    bounds = ColumnStatistics(schema)
    try:
        with (
            open_output(path) as file,
            pq.ParquetWriter(
                file,
                schema,
                # A round writes a small table whole, and its old files stay for the grace.
                compression="zstd",
                use_dictionary=repeated,
                # Delta's log has the schema of the table.
                store_schema=False,
            ) as writer,
        ):
            rows = _write_group(writer, bounds, first.pop())
            # A loop would keep a group in memory while the next one is read.
            rows += sum(map(partial(_write_group, writer, bounds), groups))
    except BaseException:
        path.remove()
        raise
    return WrittenFile(path, rows, bounds.format())


def _write_group(writer: pq.ParquetWriter, bounds: ColumnStatistics, group: pa.Table) -> int:
    writer.write_table(group, row_group_size=group.num_rows)
    for batch in group.to_batches():
        bounds.add(batch)
    return int(group.num_rows)


def _group(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches as row groups; none of them is empty."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting and size + batch.nbytes > _GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _find_repeated(rows: pa.Table) -> list[str]:
    """The columns whose values often repeat."""
    flat = [
        name for name in rows.schema.names if not pa.types.is_nested(rows.schema.field(name).type)
    ]
    return [
        name
        for name in flat
        if pc.count_distinct(rows.column(name)).as_py() <= _MAX_DISTINCT_SHARE * rows.num_rows
    ]
