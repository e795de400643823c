"""What a stretch of the log leaves of a table: the rows that replace those of the target.

The fold is computed once and kept while it is used: a MERGE reads its source several times.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from spark_jobs.changes import id_names
from spark_jobs.fold import fold_by_last
from spark_jobs.lineage import fold_by_lineage
from spark_jobs.lone_reads import LoneReads
from spark_jobs.rows import name_lossy, type_rows
from spark_jobs.shapes import Shape
from spark_jobs.stretch import Stretch
from spark_jobs.sweeps import is_swept


@dataclass(frozen=True, slots=True)
class Outcome:
    """Folded rows in the table's columns, how many, and the least and greatest first id.

    `lossy` is how many of those that arrived have a value that `_raw` alone holds.
    """

    rows: DataFrame
    carried: frozenset[int]  # The columns that some row takes from its target.
    arrived: int
    departed: int
    lossy: int
    least: object
    greatest: object


def work_out(stretch: Stretch, target: DataFrame | None, steps: DataFrame | None = None) -> Outcome:
    """Fold a stretch, or some steps of it, over a target (None where it counts for nothing)."""
    assert stretch.shape is not None
    shape, ids = stretch.shape, id_names(stretch.shape)
    steps = stretch.take_steps() if steps is None else steps
    folded = fold_by_last(steps, ids, stretch.unsent, len(shape.columns))
    rows = _drop_swept(type_rows(folded, shape), stretch)
    outcome, unclear = _measure(rows, shape, stretch.unsent)
    if unclear:
        settled = _settle(outcome.rows, steps, stretch, target)
        outcome, _ = _measure(_drop_swept(settled, stretch), shape, stretch.unsent)
    return outcome


def add_lone(outcome: Outcome | None, lone: LoneReads, shape: Shape) -> Outcome:
    """The outcome of a stretch of which lone reads were set apart; None where all of it was."""
    rows = lone.read() if outcome is None else lone.read().unionByName(outcome.rows)
    return _measure(rows, shape, frozenset() if outcome is None else outcome.carried)[0]


def _drop_swept(rows: DataFrame, stretch: Stretch) -> DataFrame:
    """Let the rows that a sweep found too old be gone."""
    if not stretch.swept:
        return rows
    assert stretch.shape is not None
    old = rows.alias("s")
    stays = F.col("_present") & ~is_swept("s", stretch.shape, stretch.swept)
    return old.withColumn("_present", stays)


def _settle(
    rows: DataFrame, steps: DataFrame, stretch: Stretch, target: DataFrame | None
) -> DataFrame:
    """Trace the keys that the last step does not decide, with the keys their rows came by."""
    assert stretch.shape is not None
    ids = id_names(stretch.shape)
    unclear = rows.where("_unclear").select(*ids)
    involved = unclear
    if stretch.unsent:
        moved = steps.where(F.col("_from").isNotNull())
        involved = involved.union(moved.select(*ids)).union(moved.select("_from.*"))
    traced = fold_by_lineage(
        steps.join(involved.distinct(), ids, "left_semi"), stretch.shape, stretch.unsent, target
    )
    return rows.where("not _unclear").unionByName(traced.join(unclear, ids, "left_semi"))


def _measure(rows: DataFrame, shape: Shape, unsent: frozenset[int]) -> tuple[Outcome, int]:
    """Compute rows once, and count them."""
    totals = Observation()
    first_id = id_names(shape)[0]
    rows = rows.observe(
        totals,
        F.count_if("_present").alias("arrived"),
        F.count_if(~F.col("_present")).alias("departed"),
        F.count_if("_unclear").alias("unclear"),
        F.count_if(F.col("_present") & (F.size(name_lossy(shape)) > 0)).alias("lossy"),
        F.min(first_id).alias("least"),
        F.max(first_id).alias("greatest"),
    )
    # Not a cache: Delta refuses a MERGE whose source is one.
    rows = rows.localCheckpoint()
    found = totals.get
    outcome = Outcome(
        rows,
        unsent,
        found["arrived"],
        found["departed"],
        found["lossy"],
        found["least"],
        found["greatest"],
    )
    return outcome, found["unclear"]
