"""Applies plans to the versions of a history.

A plan changes open versions, and adds new ones. Apart from a new shape, it changes a closed version
only if a read has brought a value that the version lacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.vocabulary import Operation, Relation
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import match_names, select_values, widen
from spark_jobs.history.fold import WAS_STORED, fold_versions
from spark_jobs.history.holes import LACKED, fill_closed
from spark_jobs.history.plan import HistoryPlan
from spark_jobs.history.reshaping import HistoryShape, has_same_keys, reshape_versions
from spark_jobs.history.turns import HistorySteps, take_history_steps
from spark_jobs.history.versions import CLOSING, is_open, name_moment
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True, slots=True)
class VersionChange:
    """What a plan does to the versions of a history.

    `changed` has the touched versions and the new ones after the plan, with `WAS_STORED`. `filled`
    has the closed versions that get a value which they lacked; None if none does.
    """

    changed: DataFrame
    filled: DataFrame | None


def change_versions(
    history: HistorySteps,
    touched: DataFrame | None,
    closed: DataFrame | None,
    *,
    has_all_changes: bool,
) -> VersionChange:
    """Fold the steps of a plan onto the open versions that it touches, and compute the result.

    `closed` are the closed versions; they are read only if a read has filled a hole.
    """
    changed = fold_versions(history, touched, has_all_changes=has_all_changes).localCheckpoint()
    filled = None
    if closed is not None and history.plan.has(Operation.READ):
        own = changed.where(WAS_STORED).drop(WAS_STORED)
        filled = fill_closed(closed, own, history.schema)
    return VersionChange(changed.drop(LACKED), filled)


def apply_plan(
    versions: DataFrame | None, shape: HistoryShape | None, plan: HistoryPlan
) -> tuple[DataFrame | None, HistoryShape | None]:
    """All versions of a history after a plan, and its columns. Both are None if it has none yet.

    `versions` and `shape` are those before the plan.
    """
    first = plan.first
    if versions is not None and shape is not None:
        versions = _select(versions, shape)  # Another program may have added columns.
    if not first.is_empty and first.schema is not None:
        versions, shape = _apply(versions, shape, first, has_all_changes=True)
    for rebuilt in plan.rebuilt:
        if versions is not None and shape is not None:
            versions, shape = _take_shape(versions, shape, rebuilt, plan.relations)
        versions, shape = _apply(versions, shape, rebuilt, has_all_changes=False)
    return versions, shape


def _apply(
    versions: DataFrame | None,
    shape: HistoryShape | None,
    plan: TablePlan,
    *,
    has_all_changes: bool,
) -> tuple[DataFrame, HistoryShape]:
    assert plan.schema is not None
    dropped = () if shape is None else shape.dropped
    if versions is not None and shape is not None and shape.schema != plan.schema:
        if _clashes(shape, plan.schema):
            versions, shape = reshape_versions(versions, shape, plan.schema)
            dropped = shape.dropped
        else:
            versions = _widen_versions(versions, shape, plan.schema)
    new_shape = HistoryShape(plan.schema, dropped)
    history = take_history_steps(plan, dropped)
    if versions is None:
        change = change_versions(history, None, None, has_all_changes=has_all_changes)
        return _select(change.changed.drop(WAS_STORED), new_shape), new_shape
    open_ones = history.mark_touched(versions.where(is_open())).localCheckpoint()
    closed = versions.where(~is_open())
    touched = open_ones.where("_touched").drop("_touched")
    change = change_versions(history, touched, closed, has_all_changes=has_all_changes)
    parts = [
        open_ones.where("not _touched").drop("_touched"),
        replace_filled(closed, change.filled, plan.schema),
        change.changed.drop(WAS_STORED),
    ]
    result = _select(parts[0], new_shape)
    for part in parts[1:]:
        result = result.unionByName(_select(part, new_shape))
    return result, new_shape


def _widen_versions(versions: DataFrame, shape: HistoryShape, schema: TableSchema) -> DataFrame:
    """Add the new columns of a table schema: NULL in closed versions."""
    known = {field.name for field in shape.fields}
    new = [name for name in schema.names if name not in known]
    if not new:
        return versions
    open_ones, closed = widen(versions.where(is_open()), schema), versions.where(~is_open())
    return open_ones.unionByName(closed, allowMissingColumns=True)


def _clashes(shape: HistoryShape, schema: TableSchema) -> bool:
    """Whether a new column has the name of one that the source has dropped."""
    names = {name.lower() for name in schema.names}
    return any(field.name.lower() in names for field in shape.dropped)


def replace_filled(closed: DataFrame, filled: DataFrame | None, schema: TableSchema) -> DataFrame:
    """Replace closed versions by those that a read has filled."""
    if filled is None:
        return closed
    names = [*match_names(schema), "_from_epoch", "_from_lsn"]
    own = filled.select(*(F.col(f"`{name}`").alias(f"_f{i}") for i, name in enumerate(names)))
    same = [F.col(f"`{name}`") == F.col(f"_f{i}") for i, name in enumerate(names)]
    return closed.join(own, same, "left_anti").unionByName(filled)


def _take_shape(
    versions: DataFrame, shape: HistoryShape, plan: TablePlan, relations: Iterable[Relation]
) -> tuple[DataFrame, HistoryShape]:
    """Give versions the table schema of a backfill that ends a halt.

    If rows have other keys now, no version can be matched with a row. So all open versions end at
    the first entry of the backfill.
    """
    assert plan.schema is not None
    if not has_same_keys(shape.schema, plan.schema):
        versions = _close_all(versions, plan)
    return reshape_versions(versions, shape, plan.schema, relations)


def _close_all(versions: DataFrame, plan: TablePlan) -> DataFrame:
    """Close all open versions where a plan begins."""
    # A time as a number: Spark would return it in this process's zone.
    begin = F.struct("epoch", "end_lsn", F.unix_micros("log_time").alias("time_us"))
    ((first,),) = plan.read().agg(F.min(begin)).collect()
    ending = F.struct(
        F.lit(first["epoch"]).alias("epoch"),
        F.lit(first["end_lsn"]).alias("end_lsn"),
        F.timestamp_micros(F.lit(first["time_us"])).alias("log_time"),
        # As if the backfill had not found them.
        F.lit(Operation.SWEEP.value).alias("op"),
    )
    closing = name_moment(CLOSING, ending)
    values = {field.name: F.col(f"`{field.name}`") for field in versions.schema.fields}
    values |= {name: F.when(is_open(), one).otherwise(F.col(name)) for name, one in closing.items()}
    values["_is_current"] = F.lit(False)
    return versions.select(*select_values(values, versions.schema.fields))


def _select(versions: DataFrame, shape: HistoryShape) -> DataFrame:
    known = {*versions.columns}
    values = {
        field.name: F.col(f"`{field.name}`")
        if field.name in known
        else F.lit(None).cast(field.dataType)
        for field in shape.fields
    }
    return versions.select(*select_values(values, shape.fields))
