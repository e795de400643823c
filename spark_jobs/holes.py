"""Rows that lack a value the stream never sent, found in a table's files: no JVM, next to no bytes.

`_holes` is null in all other rows. A file's statistics say whether a row of it has one; where they
do not (Delta keeps them of the first 32 columns), a column of nulls takes a few bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.vocabulary import Position
from spark_jobs.changes import has_exact_key
from spark_jobs.rows import match_names
from spark_jobs.stretch import read_shape

_HOLES = "_holes"
_POSITION = ["_epoch", "_commit_lsn", "_seq"]


@dataclass(frozen=True, slots=True)
class Hole:
    """A row with holes: its key as the source writes it, and the change that left it so."""

    key: tuple[str, ...]
    position: Position


def find_holes(folder: Path, table: DeltaTable) -> list[Hole]:
    """The rows that have holes, oldest first, of a table whose files are in a folder."""
    shape = read_shape(table)
    names, is_exact = match_names(shape), has_exact_key(shape)
    kept = _read_kept(table)
    found: list[Hole] = []
    for path in _list_files(folder, table):
        for row in _read_rows(path, kept.get(path.name), [*names, *_POSITION]):
            key = [row[name] for name in names]
            texts = [_write_text(value) for value in key] if is_exact else json.loads(key[0])
            position = Position(*(row[name] for name in _POSITION))
            found.append(Hole(tuple(texts), position))
    return sorted(found, key=lambda hole: (hole.position, hole.key))


def sign(holes: list[Hole]) -> str:
    """A short text that is another as soon as any of the rows has changed, or was read again."""
    told = json.dumps([[hole.key, str(hole.position)] for hole in holes])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _list_files(folder: Path, table: DeltaTable) -> Iterator[Path]:
    """The files that may have such rows."""
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        nulls, entries = file.get(f"null_count.{_HOLES}"), file["num_records"]
        if nulls is None or entries is None or nulls < entries:
            yield folder / file["path"]


def _read_kept(table: DeltaTable) -> dict[str, pa.Array]:
    """By file, where rows of it were deleted, which were not."""
    batches = pa.RecordBatchReader.from_stream(table.deletion_vectors())
    return {
        Path(path).name: pa.array(kept)
        for batch in batches
        for path, kept in zip(
            batch.column("filepath").to_pylist(), batch.column("selection_vector"), strict=True
        )
    }


def _read_rows(path: Path, kept: pa.Array | None, names: list[str]) -> list[dict[str, Any]]:
    has_holes = pc.is_valid(pq.read_table(path, columns=[_HOLES]).column(_HOLES)).combine_chunks()
    if kept is not None:
        has_holes = pc.and_(has_holes, kept)
    if not has_holes.true_count:
        return []
    rows: list[dict[str, Any]] = pq.read_table(path, columns=names).filter(has_holes).to_pylist()
    return rows


def _write_text(value: object) -> str:
    """A value of a key as the source writes it; only such types are keys of their own."""
    if isinstance(value, bool):
        return "t" if value else "f"
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
