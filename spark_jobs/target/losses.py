"""Counts, by column, the values that only `_raw` holds, because the column's type cannot.

A merge does not count the whole table again. It adds the counts of the rows that arrive, and
subtracts those of the rows that they replace. The commit of the rows has the counts as its user
metadata, so that rows and counts always agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.fold.outcome import Outcome
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import match_keys, match_names, name_lossy
from spark_jobs.fold.sweeps import Sweep, is_swept
from spark_jobs.lake.lake import Losses
from spark_jobs.schema.evolution import TableSchema


def count_losses(
    outcome: Outcome, plan: TablePlan, base: DataFrame | None, known: Losses | None
) -> Losses:
    """Return the counts after folded rows replace rows of a base.

    `base` is None if all old rows are replaced. `known` has the counts of the base; None if they
    must be counted. A column that ever had a count stays in the result, with 0.
    """
    assert plan.schema is not None
    rows, schema = outcome.rows, plan.schema
    before = Counter(known)
    if base is not None and known is None:
        before = _count(base, name_lossy(schema))
    after = Counter(before if base is not None else dict.fromkeys(before, 0))
    if outcome.lossy:
        after.update(_count(rows.where("_present"), name_lossy(schema)))
    if base is not None and before.total():
        after.subtract(_count_replaced(rows, schema, base))
        if plan.swept:
            after.subtract(_count_swept(rows, schema, base, plan.swept))
    return dict(after)


def count_added(
    added: DataFrame | None, schema: TableSchema, base: DataFrame | None, known: Losses | None
) -> Losses:
    """Return the counts after rows are added to a base, or replace it if `base` is None.

    `added` is None if no added row has a `_raw`. `known` has the counts of the base; None if they
    must be counted.
    """
    if base is None:
        counts = Counter(dict.fromkeys(known or (), 0))
    elif known is None:
        counts = _count(base.where("_raw is not null"), name_lossy(schema))
    else:
        counts = Counter(known)
    if added is not None:
        counts.update(_count(added.where("_raw is not null"), name_lossy(schema)))
    return dict(counts)


def _count_swept(
    rows: DataFrame, schema: TableSchema, base: DataFrame, swept: Sequence[Sweep]
) -> Counter[str]:
    """Count the raw values of base rows that a sweep removes and that no row replaces."""
    old = base.where("_raw is not null").alias("t").where(is_swept("t", schema, swept))
    gone = old.join(rows.alias("s"), match_keys(schema), "left_anti")
    return _count(gone, name_lossy(schema))


def _count_replaced(rows: DataFrame, schema: TableSchema, base: DataFrame) -> Counter[str]:
    """Count the raw values of base rows that are replaced, without those that new rows keep."""
    names = [f"`{name}`" for name in match_names(schema)]
    old = base.where("_raw is not null").select(*names, name_lossy(schema).alias("_lossy"))
    replaced = old.where(F.size("_lossy") > 0).alias("t").join(rows.alias("s"), match_keys(schema))
    kept = F.when(F.col("s._present"), F.col("s._carried")).otherwise(F.array())
    return _count(replaced, F.array_except("t._lossy", kept.cast("array<string>")))


def _count(rows: DataFrame, names: Expression) -> Counter[str]:
    listed = rows.select(F.explode(names).alias("name")).groupBy("name").count().collect()
    return Counter({row[0]: row[1] for row in listed})
