"""Folds, for each key that has no row at the end of a plan, the last row that it had.

A key has a row if a transaction left it one. So a row that came and departed in one transaction is
no last row. The answer depends on the log alone, and not on where rounds begin and end.

The verdicts of the multi-row fold say for each key and transaction whether the key has a row
afterwards, and which step brought it. A TRUNCATE removes every row. So each step has the number of
TRUNCATEs before it, and two steps with different numbers never share a row.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.fold.multi_row import PARTS, JudgedSteps, find_held, judge, read_images
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.removals import RemovalPoints
from spark_jobs.fold.rows import META_NAMES
from spark_jobs.fold.steps import RENEWAL, id_names
from spark_jobs.fold.truncates import number_by_truncates
from spark_jobs.log.reading import POSITION
from spark_jobs.schema.evolution import TableSchema

_TRANSACTION = ("epoch", "commit_lsn")
# The fields of a log point, in the order of `META_NAMES`.
_REMOVAL = (*POSITION, "committed_at")


def fold_last_rows(
    plan: TablePlan, present: DataFrame, removals: RemovalPoints, target: DataFrame | None
) -> DataFrame:
    """Fold the keys of a plan that have no row at its end; `present` has the ids of those that do.

    Shape: as `type_rows`, with `_kept`, and `_present` false. If `_kept`, the row is the last one
    that the key had in the plan; else the key had none, and the row's values are NULL. Position and
    commit time are those of what removed the key's last row.
    """
    assert plan.schema is not None
    schema, names = plan.schema, id_names(plan.schema)
    steps, ids = number_by_truncates(plan.take_all_steps(), names, removals.truncates)
    gone = steps.select(*names).distinct().join(present, names, "left_anti").localCheckpoint()
    steps = steps.join(_list_involved(steps, gone, names, plan), names, "left_semi")
    steps = steps.dropDuplicates([*ids, *POSITION]).localCheckpoint()
    verdicts = judge(steps, ids).localCheckpoint()
    own = _add_times(verdicts.join(gone, names, "left_semi"), steps, ids)
    ends = _find_ends(own, names, ids).localCheckpoint()
    held = find_held(verdicts, target, ids, schema)
    if plan.unsent:
        steps = _mark_later_renewals(steps, ends, names)
    judged = JudgedSteps(steps, verdicts, held, ids)
    final = ends.where("_image is not null").select("_image.*", F.lit(True).alias("present"))
    last = read_images(judged, final, schema, plan.unsent, target)
    kept = _set_removal(last.join(ends.select(*names, "_departure"), names), schema, removals)
    lost = ends.where("_image is null and _departure is not null")
    return kept.unionByName(_make_empty(lost, kept, names))


def _list_involved(
    steps: DataFrame, gone: DataFrame, names: list[str], plan: TablePlan
) -> DataFrame:
    """The keys whose steps are needed: those that are gone, and those that rows moved between."""
    if not plan.unsent:
        return gone
    moved = steps.where(F.col("_from").isNotNull())
    origins = moved.select(*(F.col(f"_from.{name}").alias(name) for name in names))
    return gone.union(moved.select(*names)).union(origins).distinct()


def _add_times(verdicts: DataFrame, steps: DataFrame, ids: list[str]) -> DataFrame:
    times = steps.groupBy(*ids, *_TRANSACTION).agg(F.max("committed_at").alias("committed_at"))
    return verdicts.join(times, [*ids, *_TRANSACTION])


def _find_ends(verdicts: DataFrame, names: list[str], ids: list[str]) -> DataFrame:
    """Find for each key the step that brought its last row, and when the key departed after it.

    Shape: the key's columns; `_image`, the ids and the position of that step; `_departure`, the
    position and the commit time. Both may be NULL.
    """
    transaction = F.struct(*_TRANSACTION)
    key = Window.partitionBy(*names)
    image = F.struct(*ids, *POSITION)
    departure = F.struct(*_TRANSACTION, F.col("last").alias("seq"), "committed_at")
    found = verdicts.withColumn("_at", F.max(F.when(F.col("stays"), transaction)).over(key))
    is_after = F.col("_at").isNull() | (transaction > F.col("_at"))
    return found.groupBy(*names).agg(
        F.max_by(image, F.when(F.col("stays"), transaction)).alias("_image"),
        F.min(F.when(~F.col("stays") & is_after, departure)).alias("_departure"),
    )


def _mark_later_renewals(steps: DataFrame, ends: DataFrame, names: list[str]) -> DataFrame:
    """Mark renewals that come after a key's last row, in the transaction in which it departs.

    The last row must not have their values. A row that moves away after them has them.
    """
    left = ends.where("_image is not null and _departure is not null").select(
        *names,
        *(F.col(f"_departure.{name}").alias(name) for name in _TRANSACTION),
        F.lit(True).alias("_leaves"),
    )
    first = F.min("seq").over(Window.partitionBy(*names, *_TRANSACTION))
    is_first = (F.col("kind") == RENEWAL) & (F.col("seq") == F.col("_first"))
    return (
        steps.withColumn("_first", first)
        .join(left, [*names, *_TRANSACTION], "left")
        .withColumn(PARTS, F.coalesce("_leaves", F.lit(False)) & is_first)
        .select(*steps.columns, PARTS)
        .localCheckpoint()
    )


def _set_removal(rows: DataFrame, schema: TableSchema, removals: RemovalPoints) -> DataFrame:
    """Give last rows the position and the commit time of what removed them."""
    removal = removals.find("v", schema, F.col("_departure"))
    found = rows.alias("v").withColumn("_removal", removal)
    values = {
        name: F.coalesce(F.col(f"_removal.{field}"), F.col(name))
        for name, field in zip(META_NAMES, _REMOVAL, strict=True)
    }
    values |= {"_present": F.lit(False), "_kept": F.lit(True)}
    return found.withColumns(values).drop("_removal", "_departure")


def _make_empty(ends: DataFrame, like: DataFrame, names: list[str]) -> DataFrame:
    """Rows without values, for keys that departed and had no row in the plan."""
    kinds = {field.name: field.dataType for field in like.schema.fields}
    values = {name: F.lit(None).cast(kind) for name, kind in kinds.items()}
    values |= {name: F.col(name) for name in names}
    pairs = zip(META_NAMES, _REMOVAL, strict=True)
    values |= {name: F.col(f"_departure.{field}") for name, field in pairs}
    values |= {"_carried": F.array().cast("array<string>")}
    values |= {name: F.lit(False) for name in ("_present", "_kept", "_unclear")}
    return ends.select(*(values[name].alias(name) for name in like.columns))
