"""Writes the small files of a table as one file. Merges by Spark leave many.

Every round and every reader lists all files of a table, and opens those that may have the keys that
it looks for. So many small files make both slow. The commit changes no row and keeps the bound of
the table. It names the version that it extends, so it is refused if a merge came between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_core.crash_points import reach
from cdc_core.errors import MergeError, Retry
from cdc_core.lake_storage.arrow_files import read_footer
from cdc_core.lake_storage.place import LakePlace
from cdc_core.targets import Target, TargetKind
from spark_jobs.delta.abandoned_attempts import clear_attempts
from spark_jobs.delta.attempts import attempting
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.delta.direct_parquet import is_plain
from spark_jobs.delta.file_writer import write_batches
from spark_jobs.fast_path.key_search import Refusal, read_groups
from spark_jobs.fold.plan import has_table_schema, read_schema
from spark_jobs.history.files import list_history_files
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Epoch, Lake, find_bound, open_table, read_losses
from spark_jobs.log.reading import POSITION

# If a table has `_FEWEST_FILES` files below `_SMALL_BYTES`, the smallest of them become one file:
# up to `_MAX_FILES` files that have up to `_MAX_BYTES` together.
_SMALL_BYTES = 8 << 20
_MAX_BYTES = 32 << 20
_FEWEST_FILES, _MAX_FILES = 10, 1000
# The rows to sort may take at most this many bytes in memory.
_MAX_DECODED = 256 << 20
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class SizedFile:
    """A file of a table at one version. `rows` is None if its writer did not count them."""

    name: str
    size: int
    rows: int | None


def choose_small_files(files: Sequence[SizedFile]) -> list[SizedFile]:
    """Choose the small files of a table to write as one, smallest first; none if few are small."""
    small = sorted((file for file in files if file.size < _SMALL_BYTES), key=lambda file: file.size)
    if len(small) < _FEWEST_FILES:
        return []
    chosen, size = list[SizedFile](), 0
    for file in small[:_MAX_FILES]:
        if size + file.size > _MAX_BYTES:
            break
        chosen.append(file)
        size += file.size
    return chosen


def compact_target(lake: Lake, target: Target, epochs: list[Epoch]) -> bool:
    """Write the small files of a target as one; return whether it did.

    Raises: MergeError if somebody else keeps the table's lock, or if the storage refuses.
    """
    folder = lake.locate_target(target)
    table = open_table(folder)
    if table is None or not has_table_schema(table) or not is_plain(table):
        return False
    if not _choose_files(folder, table, target):
        return False
    with lake.lock_table(str(target), jvm=None):
        clear_attempts(folder, epochs)
        table = open_table(folder)
        bound = None if table is None else find_bound(table, epochs)
        if table is None or bound is None or not is_plain(table):
            return False
        chosen, rows = _read_files(folder, table, _choose_files(folder, table, target))
        if not is_worth_writing(chosen):
            return False
        # A merge that died may have left the newest commit, and the disk may have refused it.
        newest = table.version()
        require_durable(folder, above=newest - 1, through=newest, left=newest)
        epoch = next(epoch for epoch in epochs if epoch.number == bound.epoch)
        with attempting(folder, version=newest + 1) as attempt:
            written = write_batches(attempt, rows.to_batches(max_chunksize=_BATCH_ROWS))
            del rows
            reach("before_table_compaction")
            change = FileChange(
                attempt,
                [] if written is None else [written],
                removed=[file.name for file in chosen],
                is_same=True,
            )
            try:
                commit_files(
                    folder, table, change, epoch=epoch, reached=bound, lossy=read_losses(table)
                )
            except DeltaError as error:
                raise MergeError(
                    f"{target} was not compacted: another process has committed to it",
                    fix="nothing: the next maintenance tries again",
                    retry=Retry.LATER,
                ) from error
    return True


def _list_files(table: DeltaTable) -> list[SizedFile]:
    known = pa.table(table.get_add_actions()).select(["path", "size_bytes", "num_records"])
    return [
        SizedFile(row["path"], row["size_bytes"], row["num_records"]) for row in known.to_pylist()
    ]


def _list_parts(table: DeltaTable, target: Target) -> list[list[SizedFile]]:
    """List the files of a table in parts, whose rows must not be in one file.

    If a file of a history had open and closed versions, merges would read the closed ones, too.
    """
    files = _list_files(table)
    if target.kind is not TargetKind.HISTORY:
        return [files]
    may_be_open = {file.name for file in list_history_files(table) if file.may_be_open}
    return [
        [file for file in files if file.name not in may_be_open],
        [file for file in files if file.name in may_be_open],
    ]


def _choose_files(folder: LakePlace, table: DeltaTable, target: Target) -> list[SizedFile]:
    """Choose small files of one part that fit in memory together; none if it is not worth it."""
    return max((_choose_fitting(folder, part) for part in _list_parts(table, target)), key=len)


def _choose_fitting(folder: LakePlace, part: list[SizedFile]) -> list[SizedFile]:
    files, size = list[SizedFile](), 0
    for file in choose_small_files(part):
        footer = read_footer(folder / unquote(file.name))
        # In memory, the rows take about this size at least.
        size += sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
        if size > _MAX_DECODED:
            break
        files.append(file)
    return files if is_worth_writing(files) else []


def is_worth_writing(files: Sequence[SizedFile]) -> bool:
    """Whether no file has more than half the bytes. So large files are seldom written again."""
    sizes = [file.size for file in files]
    return len(sizes) > 1 and max(sizes) * 2 <= sum(sizes)


def _read_files(
    folder: LakePlace, table: DeltaTable, files: Sequence[SizedFile]
) -> tuple[list[SizedFile], pa.Table]:
    """Read the first of some files, as many as fit in memory; their rows in the order of the key.

    Rows without a key, which are entries of the log, come in the order of the log.
    Raises: MergeError if rows are missing.
    """
    schema = pa.schema(table.schema().to_arrow())
    taken, parts, left = list[SizedFile](), [schema.empty_table()], _MAX_DECODED
    for file in files:
        rows = _read_file(folder / unquote(file.name), schema, left)
        if rows is None:
            break
        if file.rows is not None and rows.num_rows != file.rows:
            raise MergeError(
                f"{folder / file.name} has {rows.num_rows} rows, but its table counts {file.rows}",
                fix="delete the folder of the table: a merge builds it again",
                retry=Retry.AFTER_FIX,
            )
        taken.append(file)
        parts.append(rows)
        left -= rows.nbytes
    found = pa.concat_tables(parts)
    # A reader of one key then opens few row groups.
    shape = read_schema(table)
    names = [shape.names[index] for index in shape.key] or [f"_{name}" for name in POSITION]
    if any(pa.types.is_nested(schema.field(name).type) for name in names):
        return taken, found  # Arrow does not sort lists.
    return taken, found.sort_by([(name, "ascending") for name in names])


def _read_file(file: LakePlace, schema: pa.Schema, most: int) -> pa.Table | None:
    """Read the rows of a file; None if they take more than `most` bytes, or Arrow refuses it."""
    parts = [schema.empty_table()]
    try:
        for rows in read_groups(file, schema, all_columns=schema):
            most -= rows.nbytes
            if most < 0:
                return None
            parts.append(rows)
    except Refusal:
        return None
    return pa.concat_tables(parts)
