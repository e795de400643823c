"""Merges changes into a history: one commit has the versions and the bound that they reach.

A merge writes the files again that have a touched open version. It writes closed versions to files
of their own, and reads those again only to fill values that they lack. What has a new shape, or
follows a backfill that ended a halt, it writes whole.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.crash_points import reach
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from cdc_core.targets import Target
from cdc_core.vocabulary import Operation
from spark_jobs.delta.attempts import Attempt, attempting
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.delta.direct_parquet import (
    allows_direct_commits,
    can_read,
    is_plain,
    read_rows,
    write_files,
)
from spark_jobs.delta.file_writer import WrittenFile
from spark_jobs.fold.rows import match_names
from spark_jobs.history.apply import (
    apply_plan,
    change_versions,
    replace_filled,
)
from spark_jobs.history.files import HistoryFiles
from spark_jobs.history.fold import WAS_STORED
from spark_jobs.history.plan import HistoryPlan
from spark_jobs.history.reshaping import HistoryShape
from spark_jobs.history.turns import take_history_steps
from spark_jobs.history.versions import is_open
from spark_jobs.lake.lake import Epoch, Lake, Losses, count_rows, read_losses
from spark_jobs.query.history_beginning import HistoryBeginning
from spark_jobs.target.commits import write_table
from spark_jobs.target.creation import allow_types, create_target
from spark_jobs.target.losses import count_added
from spark_jobs.target.result import TableMergeResult, WritePlan

# Versions that take less than this in the files of a table are written as one file.
_ONE_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HistoryMerge:
    """A plan with changes for a history. `existing` is None if the history does not exist.

    `beginning` is what a new history begins with. If not `is_own`, another writer has replaced the
    history. The caller holds the target's lock.
    """

    session: SparkSession
    lake: Lake
    target: Target
    epoch: Epoch
    plan: HistoryPlan
    existing: DeltaTable | None
    is_own: bool
    beginning: HistoryBeginning

    @property
    def path(self) -> LakePlace:
        """The folder of the target."""
        return self.lake.locate_target(self.target)


@dataclass(frozen=True, slots=True)
class _Written:
    """What a commit added to a history: how many versions began and ended, and the lost values."""

    version: int
    opened: int
    closed: int
    lossy: Losses
    way: WritePlan


def merge_history(merge: HistoryMerge) -> TableMergeResult:
    """Merge a plan into a history.

    In the result, `inserted` counts the versions that began, and `updated` those that ended.
    Raises: DeltaError if another commit came between; MergeError if the storage refuses; OSError.
    """
    began = time.monotonic()
    written = _merge_files(merge) if _may_merge_files(merge) else _write_whole(merge)
    reach("after_merge_commit")
    rows = count_rows(merge.path, open_delta(merge.path, version=written.version))
    return TableMergeResult(
        written.version,
        rows,
        written.opened,
        written.closed,
        0,
        written.lossy,
        time.monotonic() - began,
        written.way,
    )


def _may_merge_files(merge: HistoryMerge) -> bool:
    """Whether files of the history may be replaced, and the others stay."""
    table, plan = merge.existing, merge.plan
    if table is None or not merge.is_own or plan.rebuilt:
        return False
    names = pa.table(table.get_add_actions())["path"].to_pylist()
    # A new column and the rows must come in one commit, so the history is written whole.
    is_same = HistoryShape.of(table).schema == plan.first.schema
    return is_same and is_plain(table) and can_read(merge.path, table, names)


def _write_whole(merge: HistoryMerge) -> _Written:
    """Write all versions of a history."""
    session, path, existing = merge.session, merge.path, merge.existing
    versions, shape = merge.beginning.versions, merge.beginning.shape
    had, had_closed = 0, 0
    if existing is not None and merge.is_own:
        shape = HistoryShape.of(existing)
        versions = read_rows(session, path, existing)
        had, had_closed = count_rows(path, existing), versions.where(~is_open()).count()
    result, new_shape = apply_plan(versions, shape, merge.plan)
    assert result is not None
    assert new_shape is not None
    fields, result = new_shape.fields, result.localCheckpoint()
    if existing is None:
        before = create_target(session, merge.lake, merge.target, fields)
    else:
        before = allow_types(session, path, existing, fields)
    lossy = count_added(result, new_shape.schema, None, read_losses(before))
    reach("before_merge_commit")
    if allows_direct_commits(before):
        with attempting(path, version=before.version() + 1) as attempt:
            added = write_apart(result, attempt, new_shape, size=None)
            change = FileChange(attempt, added, replaces_all=True, fields=fields)
            reached = merge.plan.last.upper
            commit_files(path, before, change, epoch=merge.epoch, reached=reached, lossy=lossy)
    else:
        write_table(
            result,
            path,
            before,
            fields=fields,
            mode="overwrite",
            epoch=merge.epoch,
            reached=merge.plan.last.upper,
            lossy=lossy,
        )
    has = count_rows(path, open_delta(path, version=before.version() + 1))
    closed = result.where(~is_open()).count() - had_closed
    return _Written(before.version() + 1, has - had, closed, lossy, WritePlan.REWRITE)


def _merge_files(merge: HistoryMerge) -> _Written:
    """Replace the files of a history that have a touched version, and add the others."""
    session, path, plan, table = merge.session, merge.path, merge.plan.first, merge.existing
    assert table is not None
    assert plan.schema is not None
    shape = HistoryShape.of(table)
    before = allow_types(session, path, table, shape.fields)
    history = take_history_steps(plan, shape.dropped)
    files = HistoryFiles(session, path, before, shape)
    replaced = files.find_touched(history)
    touched, rest = None, None
    if replaced:
        inside = files.read(replaced)
        marked = history.mark_touched(inside.where(is_open())).localCheckpoint()
        touched = marked.where("_touched").drop("_touched")
        rest = marked.where("not _touched").drop("_touched").unionByName(inside.where(~is_open()))
    with_closed = files.list_closed(history) if plan.has(Operation.READ) else []
    closed = files.read(with_closed).where(~is_open()) if with_closed else None
    change = change_versions(history, touched, closed, has_all_changes=True)
    if change.filled is not None:
        holding = files.find_holding(with_closed, change.filled, plan.schema)
        more = [name for name in holding if name not in replaced]
        found = files.read(more)
        rest = found if rest is None else rest.unionByName(found)
        rest = replace_filled(rest, change.filled, plan.schema)
        replaced = [*replaced, *more]
    rows = change.changed.drop(WAS_STORED)
    if rest is not None:
        rows = rest.unionByName(rows)
    base = read_rows(session, path, before)
    known_losses = read_losses(before)
    added_rows = change.changed.where(~F.col(WAS_STORED))
    lossy = count_added(added_rows, plan.schema, base, known_losses)
    opened, ended = _count(change.changed)
    reach("before_merge_commit")
    with attempting(path, version=before.version() + 1) as attempt:
        added = write_apart(rows, attempt, shape, size=files.measure(replaced))
        swapped = FileChange(attempt, added, removed=replaced)
        commit_files(path, before, swapped, epoch=merge.epoch, reached=plan.upper, lossy=lossy)
    return _Written(before.version() + 1, opened, ended, lossy, WritePlan.REWRITE_FILES)


def _count(changed: DataFrame) -> tuple[int, int]:
    """Count the versions that began and those that ended."""
    began = F.count_if(~F.col(WAS_STORED))
    ((opened, ended),) = changed.agg(began, F.count_if(~is_open())).collect()
    return opened, ended


def write_apart(
    rows: DataFrame, attempt: Attempt, shape: HistoryShape, *, size: int | None
) -> list[WrittenFile]:
    """Write open and closed versions to files of their own, in the order of the key.

    `size` is about how many bytes they take; None if that is not known.
    """
    names = [f"`{name}`" for name in match_names(shape.schema)]
    written: list[WrittenFile] = []
    for part in (rows.where(is_open()), rows.where(~is_open())):
        if size is not None and size < _ONE_FILE_BYTES:
            ordered = part.coalesce(1).sortWithinPartitions(*names)
        else:
            ordered = part.repartitionByRange(*names).sortWithinPartitions(*names)
        written += write_files(ordered.select(*(f"`{f.name}`" for f in shape.fields)), attempt)
    return written
