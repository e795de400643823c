"""Folds a table plan to its outcome: for each key that it changes, the row that remains, if any.

Spark computes the fold once and keeps it, because a MERGE reads its source several times.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from spark_jobs.fold.fold import fold_by_last
from spark_jobs.fold.last_rows import fold_last_rows
from spark_jobs.fold.multi_row import fold_by_lineage
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.removals import RemovalPoints
from spark_jobs.fold.rows import name_lossy, type_rows
from spark_jobs.fold.steps import id_names
from spark_jobs.fold.sweeps import is_swept
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True, slots=True)
class Outcome:
    """Folded rows in the table's columns, their counts, and the least and greatest first id.

    `arrived` counts the keys that have a row, `departed` those that have none, and `kept` those of
    the departed whose last row is among the rows. `lossy` counts the arrived rows with a value that
    only `_raw` holds.
    """

    rows: DataFrame
    carried: frozenset[int]  # The columns that a row may take from its target.
    arrived: int
    departed: int
    kept: int
    lossy: int
    least: object
    greatest: object


def fold_plan(plan: TablePlan, target: DataFrame | None, steps: DataFrame | None = None) -> Outcome:
    """Fold a table plan, or only `steps` of it, onto a target; None if its rows do not count.

    `target` has present rows only.
    """
    assert plan.schema is not None
    schema, ids = plan.schema, id_names(plan.schema)
    steps = plan.take_steps() if steps is None else steps
    folded = fold_by_last(steps, ids, plan.unsent, len(schema.columns))
    rows = _drop_swept(type_rows(folded, schema), plan)
    outcome, unclear = measure(rows, schema, plan.unsent)
    if unclear:
        settled = _settle(outcome.rows, steps, plan, target)
        outcome, _ = measure(_drop_swept(settled, plan), schema, plan.unsent)
    return outcome


def fold_plan_and_last_rows(
    plan: TablePlan, removals: RemovalPoints, target: DataFrame | None
) -> Outcome:
    """Fold a table plan. Also return the last row of each key that has no row at the end.

    `target` has present rows only; None if the table has no rows. The rows have one more column,
    `_kept`: the row is such a last row. A row that is neither `_present` nor `_kept` only says when
    its key departed.
    """
    assert plan.schema is not None
    outcome = fold_plan(plan, None if plan.truncated_at is not None else target)
    present = outcome.rows.where("_present")
    last = fold_last_rows(plan, present.select(*id_names(plan.schema)), removals, target)
    rows = present.withColumn("_kept", F.lit(False)).unionByName(last)
    return measure(rows, plan.schema, plan.unsent)[0]


def _drop_swept(rows: DataFrame, plan: TablePlan) -> DataFrame:
    """Mark the rows that a sweep removes as not present."""
    if not plan.swept:
        return rows
    assert plan.schema is not None
    old = rows.alias("s")
    stays = F.col("_present") & ~is_swept("s", plan.schema, plan.swept)
    return old.withColumn("_present", stays)


def _settle(
    rows: DataFrame, steps: DataFrame, plan: TablePlan, target: DataFrame | None
) -> DataFrame:
    """Fold the keys that the last step does not decide again, by the multi-row fold.

    If some values were not sent, it also needs the keys that rows moved from or to.
    """
    assert plan.schema is not None
    ids = id_names(plan.schema)
    unclear = rows.where("_unclear").select(*ids)
    involved = unclear
    if plan.unsent:
        moved = steps.where(F.col("_from").isNotNull())
        involved = involved.union(moved.select(*ids)).union(moved.select("_from.*"))
    traced = fold_by_lineage(
        steps.join(involved.distinct(), ids, "left_semi"), plan.schema, plan.unsent, target
    )
    return rows.where("not _unclear").unionByName(traced.join(unclear, ids, "left_semi"))


def measure(rows: DataFrame, schema: TableSchema, unsent: frozenset[int]) -> tuple[Outcome, int]:
    """Compute rows once, and count them; the second result is how many are unclear."""
    totals = Observation()
    first_id = id_names(schema)[0]
    rows = rows.observe(
        totals,
        F.count_if("_present").alias("arrived"),
        F.count_if(~F.col("_present")).alias("departed"),
        F.count_if("_kept" if "_kept" in rows.columns else F.lit(False)).alias("kept"),
        F.count_if("_unclear").alias("unclear"),
        F.count_if(F.col("_present") & (F.size(name_lossy(schema)) > 0)).alias("lossy"),
        F.min(first_id).alias("least"),
        F.max(first_id).alias("greatest"),
    )
    # Not a cache: Delta refuses a MERGE from a cached source.
    rows = rows.localCheckpoint()
    found = totals.get
    outcome = Outcome(
        rows,
        unsent,
        found["arrived"],
        found["departed"],
        found["kept"],
        found["lossy"],
        found["least"],
        found["greatest"],
    )
    return outcome, found["unclear"]
