"""What a file holds is bounded before it is decoded, however small the file is."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.lake_storage.local_place import LocalPlace
from spark_jobs.delta.decoded_size import bound_size, count_decoded, list_coded
from spark_jobs.fast_path import key_search
from spark_jobs.fast_path.key_search import (
    _MAX_GROUP_BYTES,
    Refusal,
    read_groups,
    require_memory,
)
from spark_jobs.pg_types.arrow_texts import as_bytes

SEED = 20261123


def write_rows(path: Path, rows: pa.Table, *, coded: bool = True) -> pq.FileMetaData:
    pq.write_table(rows, path, use_dictionary=coded, compression="snappy")
    return pq.read_metadata(path)


def bound_file(metadata: pq.FileMetaData, names: list[str], coded: list[str]) -> int:
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(bound_size(group, names, coded=coded) for group in groups)


@pytest.mark.parametrize("coded", [True, False])
def test_no_column_is_larger_in_memory_than_its_bound(tmp_path: Path, *, coded: bool) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")  # noqa: T201 - To play it again.
    for number in range(30):
        count = rng.randrange(1, 3_000)
        few = [rng.choice("ab") * rng.randrange(2_000) for _ in range(3)]
        rows = pa.table(
            {
                "number": pa.array(
                    [rng.choice((None, 1, 2**40)) for _ in range(count)], pa.int64()
                ),
                "few": pa.array([rng.choice([None, *few]) for _ in range(count)], pa.string()),
                "many": pa.array([str(rng.random()) for _ in range(count)], pa.string()),
                "bytes": pa.array([rng.randbytes(rng.randrange(9)) for _ in range(count)]),
                "list": pa.array([[few[0], None]] * count, pa.list_(pa.string())),
                "none": pa.array([None] * count, pa.string()),
            }
        )
        metadata = write_rows(tmp_path / f"{number}.parquet", rows, coded=coded)
        for name in rows.column_names:
            held = rows[name].combine_chunks()
            # Arrow counts one offset more than there are values, and whole bytes of bits.
            most = bound_file(metadata, [name], []) + 64
            assert held.nbytes - (count + 7) // 8 <= most, (number, name)


def test_columns_that_are_read_as_dictionaries_are_counted_in_full(tmp_path: Path) -> None:
    values = pa.array(["x" * 1_000, None, "", "y" * 3] * 500)
    metadata = write_rows(tmp_path / "file.parquet", pa.table({"few": values}))
    assert list_coded(metadata) == ["few"]
    with pq.ParquetFile(tmp_path / "file.parquet", read_dictionary=["few"]) as file:
        read = file.read()
    assert count_decoded(read, ["few"]) == 500 * 1_003 + 4 * 2_000
    assert bound_file(metadata, ["few"], ["few"]) < 20_000


def is_refused(file: Path, schema: pa.Schema) -> bool:
    try:
        for rows in read_groups(LocalPlace.of(file), schema, all_columns=schema):
            del rows
    except Refusal:
        return True
    return False


def test_a_small_file_of_large_repeated_texts_is_left_to_spark(tmp_path: Path) -> None:
    """Two texts of 300 KB, and 900 rows of them: 1,800 bytes of codes, 270 MB of texts."""
    texts = [os.urandom(150_000).hex() for _ in range(2)]
    rows = pa.table({"id": pa.array(range(900), pa.int64()), "big": texts * 450})
    file = tmp_path / "file.parquet"
    metadata = write_rows(file, rows)
    assert metadata.num_row_groups == 1
    assert file.stat().st_size < 1 << 20
    assert rows.nbytes > _MAX_GROUP_BYTES
    before = pa.total_allocated_bytes()
    assert is_refused(file, rows.schema)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_large_row_group_is_refused_by_the_footer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": pa.array(range(900), pa.int64())})
    file = tmp_path / "file.parquet"
    write_rows(file, rows)
    require_memory(LocalPlace.of(file), rows.schema)
    monkeypatch.setattr(key_search, "_MAX_GROUP_BYTES", 900)
    with pytest.raises(Refusal, match="a row group of a file does not fit in memory"):
        require_memory(LocalPlace.of(file), rows.schema)


def test_a_file_of_as_many_small_texts_is_read(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(900), pa.int64()), "big": ["a", "b"] * 450})
    write_rows(tmp_path / "file.parquet", rows)
    (read,) = read_groups(
        LocalPlace.of(tmp_path / "file.parquet"), rows.schema, all_columns=rows.schema
    )
    assert read.equals(rows)


def test_bytes_are_read_without_an_object_for_each() -> None:
    rng = random.Random(SEED)
    held = [None if n % 10 == 0 else rng.randbytes(n % 9) for n in range(100_000)]
    texts = pa.array([None if one is None else rf"\x{one.hex()}" for one in held])
    tracemalloc.start()
    try:
        found = as_bytes(texts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found.to_pylist() == held
    assert as_bytes(texts[7:90]).to_pylist() == held[7:90]  # type: ignore[union-attr]
    assert as_bytes(pa.array([None, None], pa.string())).to_pylist() == [None, None]  # type: ignore[union-attr]
    assert as_bytes(texts[:0]).to_pylist() == []  # type: ignore[union-attr]
    assert peak < texts.nbytes
