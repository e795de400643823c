"""The files that Arrow writes for tables: how they are coded, and what writing them takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.lake_storage.local_place import LocalPlace
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.file_writer import write_batches

MIB = 1 << 20


def make_batch(first: int, rows: int, text: str) -> pa.RecordBatch:
    """Rows whose key is their number, with one text."""
    keys = pa.array(np.arange(first, first + rows))
    others = [
        pa.nulls(rows, kind) for kind in (pa.map_(pa.string(), pa.string()), pa.list_(pa.string()))
    ]
    return pa.RecordBatch.from_arrays(
        [keys, pa.repeat(text, rows), *others], ["k", "v", "_raw", "_holes"]
    )


def write(folder: Path, batches: list[pa.RecordBatch]) -> pq.FileMetaData:
    written = write_batches(Attempt(LocalPlace.of(folder), 1, "a"), iter(batches))
    assert written is not None
    return pq.read_metadata(folder / written.path.name)


def test_a_file_is_compressed_and_leaves_the_schema_to_delta(tmp_path: Path) -> None:
    footer = write(tmp_path, [make_batch(0, 100, "a")])
    assert {footer.row_group(0).column(index).compression for index in range(2)} == {"ZSTD"}
    assert footer.metadata is None


def test_a_small_first_batch_does_not_decide_which_column_has_a_dictionary(tmp_path: Path) -> None:
    footer = write(tmp_path, [make_batch(0, 1, "a"), make_batch(1, 100, "a")])
    columns = [footer.row_group(0).column(index) for index in range(2)]
    assert [column.has_dictionary_page for column in columns] == [False, True]


def test_one_row_group_is_in_memory(tmp_path: Path) -> None:
    most, before = 0, pa.total_allocated_bytes()

    def make_batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(24):
            yield make_batch(number, 100_000, "a" * 64)
            most = max(most, pa.total_allocated_bytes() - before)

    written = write_batches(Attempt(LocalPlace.of(tmp_path), 1, "a"), make_batches())
    assert written is not None
    assert pq.read_metadata(tmp_path / written.path.name).num_row_groups > 2
    # A row group has 64 MiB.
    assert most < 80 * MIB
