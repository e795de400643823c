"""Commits Parquet files to a Delta table by delta-rs; Spark and Arrow only write them.

A commit extends exactly the version that its rows are based on, and has the rows, the bound that
the table reached and its counts of lost values. Spark commits each MERGE, and what is written to a
table with features of other programs (see `direct_parquet.is_ours`).

Source: the Delta protocol, sections Add File and Remove File, Transaction Identifiers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import types as T

from cdc_core.crash_points import reach
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.attempts import moving_in
from spark_jobs.delta.direct_parquet import has_schema
from spark_jobs.delta.file_writer import WrittenFile
from spark_jobs.lake.durability import require_durable, require_forced
from spark_jobs.lake.lake import Bound, Epoch, Losses, format_losses

# Commits from one checkpoint to the next. Each checkpoint names the files that left the table
# within an hour, and stays for the grace, so more of them take space. With fewer of them, a kept
# version needs more commits, and each opening of the table lists all commits.
_CHECKPOINT_INTERVAL = 10


@dataclass(frozen=True, slots=True)
class FileChange:
    """The files that a commit adds to a table, and those that leave it.

    If `replaces_all`, all files of the table leave it, and the table gets the columns of
    `fields`, if they differ. Otherwise the files named in `removed` leave; they must have no
    deletion vector. If `is_same`, the added files have exactly the rows of the removed ones.
    """

    added: Sequence[WrittenFile] = ()
    removed: Sequence[str] = ()
    replaces_all: bool = False
    is_same: bool = False
    fields: Sequence[T.StructField] | None = None


def commit_files(
    path: LakePlace,
    table: DeltaTable,
    change: FileChange,
    *,
    epoch: Epoch,
    reached: Bound,
    lossy: Losses | None,
) -> None:
    """Move files into a table's folder and commit them; the commit extends the version of `table`.

    `direct_parquet.is_ours` must be true of the table. The files are on the disk before the commit,
    and the commit is on the disk when this function returns.
    Raises: DeltaError if another commit came between; MergeError if the disk refuses it; OSError.
    """
    schema, fields = table.schema(), change.fields
    if change.replaces_all and fields is not None and not has_schema(table, [*fields]):
        schema = Schema.from_json(T.StructType([*fields]).json())
    version = table.version() + 1
    names = [file.path.name for file in change.added]
    with moving_in(path, names, version=version):
        added = [_move_file(file, path, is_new=not change.is_same) for file in change.added]
        forced = require_forced(path, names)
        reach("after_files_moved")
        table.create_write_transaction(
            [*added, *_remove_files(change.removed, is_change=not change.is_same)],
            "overwrite" if change.replaces_all else "append",
            schema,
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": format_losses(lossy)},
                app_transactions=[Transaction(epoch.app, int(reached.lsn))],
                # After another commit, the rows that this one is based on may be out of date.
                max_commit_retries=0,
            ),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )
    if version % _CHECKPOINT_INTERVAL == 0:
        newest = open_delta(path)
        newest.create_checkpoint()
    require_durable(path, above=version - 1, through=version, forced=forced)


def _move_file(file: WrittenFile, path: LakePlace, *, is_new: bool) -> AddAction:
    moved = path / file.path.name
    file.path.move_to(moved)
    return AddAction(
        path=moved.name,
        size=moved.read_size(),
        partition_values={},
        modification_time=_now_ms(),
        data_change=is_new,
        stats=file.statistics,
    )


def _remove_files(names: Iterable[str], *, is_change: bool) -> list[RemoveAction]:
    return [
        RemoveAction(path=name, data_change=is_change, deletion_timestamp=_now_ms())
        for name in names
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
