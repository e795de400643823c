"""Merges entries of the log into a target of entries: one commit has the rows and their bound."""

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
from spark_jobs.append.stored import keeps_rows, reshape_stored
from spark_jobs.delta.direct_parquet import allows_direct_commits, read_rows
from spark_jobs.lake.lake import Epoch, Lake, count_rows, read_losses
from spark_jobs.target.commits import write_table
from spark_jobs.target.creation import add_columns, allow_types, create_target
from spark_jobs.target.losses import count_added
from spark_jobs.target.result import TableMergeResult, WritePlan


@dataclass(frozen=True, slots=True)
class EntryMerge:
    """A plan with entries, and the target that it is for; None if the target does not exist.

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


def merge_entries(merge: EntryMerge) -> TableMergeResult:
    """Add the entries of a plan to a target, whose columns then hold old and new entries.

    Raises: DeltaError if another commit came between; MergeError if the storage refuses; OSError.
    """
    began = time.monotonic()
    plan, path = merge.plan, merge.path
    assert plan.shape is not None
    schema = plan.shape.schema
    fields = list_fields(schema)
    rows = plan.make_rows().persist(StorageLevel.MEMORY_AND_DISK)
    try:
        before, old, is_kept = _prepare(merge, fields)
        base = old if is_kept else None
        written = rows if is_kept or old is None else old.unionByName(rows)
        lossy = count_added(written, schema, base, read_losses(before) if is_kept else None)
        reach("before_merge_commit")
        write_table(
            written,
            path,
            before,
            fields=fields,
            mode="append" if is_kept else "overwrite",
            epoch=merge.epoch,
            reached=plan.upper,
            lossy=lossy,
        )
        reach("after_merge_commit")
    finally:
        rows.unpersist()
    version = before.version() + 1
    inserted = sum(summary.entries for summary in plan.summaries)
    held = count_rows(path, open_delta(path, version=version))
    seconds = time.monotonic() - began
    way = WritePlan.APPEND if is_kept else WritePlan.REWRITE
    return TableMergeResult(version, held, inserted, 0, 0, lossy, seconds, way)


def _prepare(
    merge: EntryMerge, fields: list[T.StructField]
) -> tuple[DeltaTable, DataFrame | None, bool]:
    """Prepare a target for more rows: the table to extend, its rows, and whether they stay.

    If they do not stay, the table must be written whole, with these rows if they are not None.
    """
    session, plan, path, existing = merge.session, merge.plan, merge.path, merge.existing
    if existing is None:
        made = create_target(session, merge.lake, plan.target, fields)
        return made, read_rows(session, path, made), True
    if plan.before is None:  # Another writer has replaced it.
        return allow_types(session, path, existing, fields), None, False
    must_widen = plan.shape is not None and plan.before != plan.shape.schema
    if keeps_rows(plan) and (not must_widen or allows_direct_commits(existing)):
        wider = _add_columns(path, existing, fields)
        return wider, read_rows(session, path, wider), True
    allowed = allow_types(session, path, existing, fields)
    return allowed, reshape_stored(read_rows(session, path, allowed), plan), False


def _add_columns(path: LakePlace, table: DeltaTable, fields: list[T.StructField]) -> DeltaTable:
    known = {field.name for field in table.schema().fields}
    new = [field for field in fields if field.name not in known]
    return add_columns(path, table, new) if new else table
