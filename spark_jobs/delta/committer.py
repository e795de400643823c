"""Commits Parquet files, which Spark or Arrow wrote, to a Delta table by delta-rs.

A commit extends exactly the version that its rows are based on, and has the rows, the bound that
the table reached and its counts of lost values. Spark commits each MERGE, and what is written to a
table with features of other programs (see `direct_parquet.allows_direct_commits`).

Source: the Delta protocol, sections Add File and Remove File, Transaction Identifiers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import types as T

from cdc_core.crash_points import reach
from cdc_core.lake_storage.delta_tables import open_delta, renew_access
from cdc_core.lake_storage.own_commits import is_own_commit, make_commit_id
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.direct_parquet import has_schema
from spark_jobs.delta.file_writer import WrittenFile
from spark_jobs.lake.durability import require_durable, require_forced
from spark_jobs.lake.lake import Bound, Epoch, Losses, format_losses, read_losses

# Commits from one checkpoint to the next. More checkpoints take more space: each stays for the
# grace, and names the files that left the table within an hour. With fewer checkpoints, a reader of
# a kept version reads more commits, and each opening of the table lists them all.
_CHECKPOINT_INTERVAL = 10


@dataclass(frozen=True, slots=True)
class FileChange:
    """The files that a commit adds to a table, and those that leave it.

    `attempt` has written the added files. If `replaces_all`, all files of the table leave it, and
    the table gets the columns of `fields`, if they differ. Otherwise the files named in `removed`
    leave; they must have no deletion vector. If `is_same`, the added files have exactly the rows of
    the removed ones.
    """

    attempt: Attempt | None = None
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
    """Commit files of a table's folder; the commit extends the version of `table`.

    `direct_parquet.allows_direct_commits` must be true of the table. The files are on the disk
    before the commit, and the commit is on the disk when this function returns.
    Raises: DeltaError if another commit came between; MergeError if the disk refuses it; OSError.
    """
    schema, fields = table.schema(), change.fields
    if change.replaces_all and fields is not None and not has_schema(table, [*fields]):
        schema = Schema.from_json(T.StructType([*fields]).json())
    names = [file.path.name for file in change.added]
    assert change.attempt is not None or not names
    added = [_add_file(file, is_new=not change.is_same) for file in change.added]
    forced = require_forced(path, names)
    reach("before_files_committed")
    _commit(
        path,
        table,
        [*added, *_remove_files(change.removed, is_change=not change.is_same)],
        attempt=change.attempt,
        mode="overwrite" if change.replaces_all else "append",
        schema=schema,
        lossy=lossy,
        transactions=[Transaction(epoch.app, int(reached.lsn))],
    )
    _finish(path, table, forced)


def take_version(path: LakePlace, table: DeltaTable, epochs: Sequence[Epoch]) -> None:
    """Commit the next version without a change, so that no paused attempt can commit it.

    The commit repeats the table's bound, so that the MERGE of a paused process finds a conflict.
    Without it, that MERGE would commit the version after this one. `epochs` are all epochs.
    Raises: DeltaError if another commit came between; MergeError if the disk refuses it; OSError.
    """
    _commit(
        path,
        table,
        [],
        attempt=None,
        mode="append",
        schema=table.schema(),
        lossy=read_losses(table),
        transactions=[
            Transaction(epoch.app, lsn)
            for epoch in epochs
            if (lsn := table.transaction_version(epoch.app)) is not None
        ],
    )
    _finish(path, table, frozenset())


def _commit(
    path: LakePlace,
    table: DeltaTable,
    actions: list[AddAction | RemoveAction],
    *,
    attempt: Attempt | None,
    mode: Literal["append", "overwrite"],
    schema: Schema,
    lossy: Losses | None,
    transactions: list[Transaction],
) -> None:
    """Commit actions as the version above that of `table`. Raises: DeltaError; OSError."""
    commit_id = make_commit_id()
    if attempt is not None:
        attempt.is_unclear = True
    try:
        # The key with which the table was opened may have expired during a long merge.
        renew_access(path, table).create_write_transaction(
            actions,
            mode,
            schema,
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": format_losses(lossy), **commit_id},
                app_transactions=transactions,
                # After another commit, the rows that this one is based on may be out of date.
                max_commit_retries=0,
            ),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )
    except (DeltaError, OSError):
        is_own = is_own_commit(path, table.version() + 1, commit_id)
        if attempt is not None:
            attempt.is_unclear = is_own is None
        if not is_own:
            raise
    if attempt is not None:
        attempt.is_unclear = False
        attempt.committed = {action.path for action in actions if isinstance(action, AddAction)}


def _finish(path: LakePlace, table: DeltaTable, forced: Collection[LakePlace]) -> None:
    """Force the commit above the version of `table` to the disk, with a checkpoint if it is due."""
    version = table.version() + 1
    if version % _CHECKPOINT_INTERVAL == 0:
        newest = open_delta(path)
        newest.create_checkpoint()
    require_durable(path, above=version - 1, through=version, forced=forced)


def _add_file(file: WrittenFile, *, is_new: bool) -> AddAction:
    return AddAction(
        path=file.path.name,
        size=file.path.read_size(),
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
