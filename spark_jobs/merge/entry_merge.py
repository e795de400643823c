"""Merges entries of the log into a target of entries: the commit of the rows has their bound.

New columns get a commit before it. A merge that dies in between leaves a target with more columns
and the bound that it had.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from cdc_core.crash_points import reach
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.append.entries import list_fields
from spark_jobs.append.plan import EntryPlan
from spark_jobs.delta.direct_parquet import allows_direct_commits, read_rows
from spark_jobs.lake.lake import Epoch, Lake, count_rows, read_losses
from spark_jobs.target.commits import write_table
from spark_jobs.target.creation import add_columns, allow_types, create_target
from spark_jobs.target.losses import count_added
from spark_jobs.target.result import TableMergeResult, WritePlan


@dataclass(frozen=True, slots=True)
class EntryMerge:
    """A plan with entries. `existing` is None if the target does not exist.

    The caller holds the target's lock.
    """

    session: SparkSession
    lake: Lake
    epoch: Epoch
    plan: EntryPlan
    existing: DeltaTable | None

    @property
    def path(self) -> LakePlace:
        """The folder of the target."""
        return self.lake.locate_target(self.plan.target)


@dataclass(frozen=True, slots=True)
class _Base:
    """The version of a target that the commit extends, and its rows, in the schema of the plan.

    Unless `is_kept`, the commit replaces all files. `rows` is None if there is no row to keep.
    """

    table: DeltaTable
    rows: DataFrame | None
    is_kept: bool


def merge_entries(merge: EntryMerge) -> TableMergeResult:
    """Add the entries of a plan to a target; stored rows get the columns of the plan.

    Raises: DeltaError if another commit came between; MergeError if the storage refuses; OSError.
    """
    began = time.monotonic()
    plan, path = merge.plan, merge.path
    fields = list_fields(plan.schema)
    added = plan.make_rows().persist(StorageLevel.MEMORY_AND_DISK)
    try:
        base = _prepare(merge, fields)
        known = read_losses(base.table) if base.is_kept else None
        had = 0 if base.rows is None else count_rows(path, base.table)
        written = added
        if base.rows is not None and not base.is_kept:
            written = base.rows.unionByName(added)
        lossy = count_added(written, plan.schema, base.rows if base.is_kept else None, known)
        reach("before_merge_commit")
        write_table(
            written,
            path,
            base.table,
            fields=fields,
            mode="append" if base.is_kept else "overwrite",
            epoch=merge.epoch,
            reached=plan.upper,
            lossy=lossy,
        )
        reach("after_merge_commit")
    finally:
        added.unpersist()
    version = base.table.version() + 1
    has = count_rows(path, open_delta(path, version=version))
    seconds = time.monotonic() - began
    way = WritePlan.APPEND if base.is_kept else WritePlan.REWRITE
    return TableMergeResult(version, has, has - had, 0, 0, lossy, seconds, way)


def _prepare(merge: EntryMerge, fields: list[T.StructField]) -> _Base:
    session, plan, path, existing = merge.session, merge.plan, merge.path, merge.existing
    if existing is None:
        made = create_target(session, merge.lake, plan.target, fields)
        return _Base(made, None, is_kept=True)
    if plan.before is None:  # Another writer has replaced it.
        return _Base(allow_types(session, path, existing, fields), None, is_kept=False)
    # To a table with features of others, Spark adds rows whichever version is the newest. A process
    # that lost its lock would add entries twice. If it overwrites the table, that does no harm.
    if plan.keeps_rows and allows_direct_commits(existing):
        known = {field.name for field in existing.schema().fields}
        new = [field for field in fields if field.name not in known]
        wider = add_columns(path, existing, new) if new else existing
        return _Base(wider, read_rows(session, path, wider), is_kept=True)
    allowed = allow_types(session, path, existing, fields)
    rows = plan.reshape(read_rows(session, path, allowed))
    return _Base(allowed, rows, is_kept=False)
