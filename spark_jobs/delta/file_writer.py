"""Writes batches of rows to one Parquet file, with the statistics that Delta keeps of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_storage.arrow_files import open_output
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.file_bounds import ColumnStatistics

# Bytes. Rows stay in memory until they make a row group of about this size.
_GROUP_BYTES = 64 << 20
# A dictionary makes a column smaller if at most this share of its first values is distinct.
_MAX_DISTINCT_SHARE = 0.5


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


def write_batches(folder: LakePlace, batches: Iterable[pa.RecordBatch]) -> WrittenFile | None:
    """Write batches of one schema to a new file; None without rows.

    If the batches raise an error, no file is left. Raises: OSError.
    """
    path = folder / f"part-{uuid.uuid4()}.parquet"
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    bounds, rows, waiting = ColumnStatistics(first.schema), 0, [first]
    try:
        repeated = _find_repeated(first)
        with (
            open_output(path) as file,
            pq.ParquetWriter(
                file,
                first.schema,
                # A small table is written in each round, and each file stays for the grace.
                compression="zstd",
                use_dictionary=repeated,
                # Delta's log has the schema of the table.
                store_schema=False,
            ) as writer,
        ):
            bounds.add(first)
            for batch in filled:
                if sum(one.nbytes for one in waiting) + batch.nbytes > _GROUP_BYTES:
                    rows += _write_group(writer, waiting)
                    waiting = []
                waiting.append(batch)
                bounds.add(batch)
            rows += _write_group(writer, waiting)
    except BaseException:
        path.remove()
        raise
    return WrittenFile(path, rows, bounds.format())


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
        if pc.count_distinct(rows.column(name)).as_py() <= _MAX_DISTINCT_SHARE * rows.num_rows
    ]
