"""Finds the rows of a table that have missing values, without a JVM, and reads very few bytes.

The column `_holes` names a row's columns with missing values; it is NULL in all other rows. A row
that the table's mode does not count as present is left out: the source no longer has its values.
The statistics of a file say whether it has such a row. If they do not (Delta keeps statistics of
the first 32 columns), the column is read: a column of NULLs takes a few bytes.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Position
from spark_jobs.fold.plan import read_schema
from spark_jobs.fold.rows import match_names
from spark_jobs.fold.steps import has_exact_key
from spark_jobs.modes.mode import Mode

_HOLES = "_holes"
_POSITION = ["_epoch", "_commit_lsn", "_seq"]
_BATCH_ROWS = 65_536
# Rows that are collected beyond those asked for, before all but the oldest are dropped.
_ROOM_ROWS = 262_144


@dataclass(frozen=True, slots=True)
class Hole:
    """A row with missing values: its key as the source writes it, and its position."""

    key: tuple[str, ...]
    position: Position


def has_holes(folder: LakePlace, table: DeltaTable, mode: Mode) -> bool:
    """Whether a table of a mode has a row with missing values. `folder` has the table's files."""
    return any(True for _ in _read_batches(folder, table, mode, []))


def count_holes(folder: LakePlace, table: DeltaTable, mode: Mode) -> int:
    """Count the rows that have missing values, without reading their keys."""
    return sum(batch.num_rows for batch in _read_batches(folder, table, mode, []))


def find_holes(folder: LakePlace, table: DeltaTable, mode: Mode, *, most: int) -> list[Hole]:
    """Find the `most` oldest rows that have missing values, oldest first.

    A table may have millions more.
    """
    schema = read_schema(table)
    names, is_exact = match_names(schema), has_exact_key(schema)
    oldest: list[pa.Table] = []
    for batch in _read_batches(folder, table, mode, [*names, *_POSITION]):
        oldest.append(pa.Table.from_batches([batch]))
        if sum(rows.num_rows for rows in oldest) > most + _ROOM_ROWS:
            oldest = [_keep_oldest(oldest, most)]
    rows = _keep_oldest(oldest, most).to_pylist() if oldest else []
    found: list[Hole] = []
    for row in rows:
        key = [row[name] for name in names]
        texts = [_write_text(value) for value in key] if is_exact else json.loads(key[0])
        found.append(Hole(tuple(texts), Position(*(row[name] for name in _POSITION))))
    return sorted(found, key=lambda hole: (hole.position, hole.key))


def _keep_oldest(tables: list[pa.Table], most: int) -> pa.Table:
    # The files of a table may differ in the width of a column, or in Arrow's type of its texts.
    rows = pa.concat_tables(tables, promote_options="permissive")
    if rows.num_rows <= most:
        return rows
    order = [(name, "ascending") for name in _POSITION]
    return rows.take(pc.select_k_unstable(rows, most, sort_keys=order))


def sign(holes: list[Hole]) -> str:
    """Return a hash of rows. It differs if one of the rows has changed or was read again."""
    told = json.dumps([[hole.key, str(hole.position)] for hole in holes])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _list_files(folder: LakePlace, table: DeltaTable) -> Iterator[LakePlace]:
    """List the files that may have rows with missing values."""
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        nulls, entries = file.get(f"null_count.{_HOLES}"), file["num_records"]
        if nulls is None or entries is None or nulls < entries:
            yield folder / file["path"]


def _read_kept(table: DeltaTable) -> dict[str, pa.Array]:
    """Read, by name of each file with deleted rows, a mask of the rows that are not deleted."""
    batches = pa.RecordBatchReader.from_stream(table.deletion_vectors())
    return {
        posixpath.basename(path): kept.values
        for batch in batches
        for path, kept in zip(
            batch.column("filepath").to_pylist(), batch.column("selection_vector"), strict=True
        )
    }


def _read_batches(
    folder: LakePlace, table: DeltaTable, mode: Mode, names: list[str]
) -> Iterator[pa.RecordBatch]:
    """Read columns of the rows that have missing values, some rows at a time."""
    kept = _read_kept(table)
    mark = None if mode.kept is None else mode.kept.mark
    for path in _list_files(folder, table):
        left = kept.get(path.name)
        # The other columns of a file are read only if it has such a row.
        if not names or any(True for _ in _read_file(path, left, mark, [])):
            yield from _read_file(path, left, mark, names)


def _read_file(
    path: LakePlace, kept: pa.Array | None, mark: str | None, names: list[str]
) -> Iterator[pa.RecordBatch]:
    start, marks = 0, [] if mark is None else [mark]
    with open_input(path) as source, pq.ParquetFile(source) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=[_HOLES, *marks, *names]):
            is_chosen = pc.is_valid(batch.column(_HOLES))
            if mark is not None:
                is_present = pc.invert(pc.fill_null(batch.column(mark), False))
                is_chosen = pc.and_(is_chosen, is_present)
            if kept is not None:
                is_chosen = pc.and_(is_chosen, kept.slice(start, batch.num_rows))
            start += batch.num_rows
            if is_chosen.true_count:
                yield batch.filter(is_chosen).select(names or [_HOLES])


def _write_text(value: object) -> str:
    """Write a key value as the source does. Exact keys have no other types than these."""
    if isinstance(value, bool):
        return "t" if value else "f"
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
