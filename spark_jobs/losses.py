"""How many values of each column their type could not hold, so that `_raw` alone has them.

Not counted over the whole table again: what arrives is added, and what the rows had that it
replaces is taken off. The counts stand in the commit of those rows, as its user metadata, so that
the two cannot part. Only where rows are written without being looked at before does that commit say
that nothing was counted; then the table's own rows are, of which those without `_raw` are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.vocabulary import Position
from spark_jobs.lake import Losses
from spark_jobs.outcome import Outcome
from spark_jobs.rows import match_keys, match_names, name_lossy
from spark_jobs.shapes import Shape
from spark_jobs.stretch import Stretch
from spark_jobs.sweeps import Sweep, is_swept


def count_losses(
    outcome: Outcome, stretch: Stretch, base: DataFrame | None, known: Losses | None
) -> Losses:
    """The counts after folded rows replace those of a base (None where it counts for nothing).

    `known` are the counts of the base, None if they must be counted. A column that ever lost a
    value keeps its place, with 0.
    """
    assert stretch.shape is not None
    rows, shape = outcome.rows, stretch.shape
    before = Counter(known)
    if base is not None and known is None:
        before = _count(base, name_lossy(shape))
    after = Counter(before if base is not None else dict.fromkeys(before, 0))
    if outcome.lossy:
        after.update(_count(rows.where("_present"), name_lossy(shape)))
    if base is not None and before.total():
        after.subtract(_count_replaced(rows, shape, base))
        if stretch.swept:
            after.subtract(_count_swept(rows, shape, base, stretch.swept))
    return dict(after)


def count_added(
    table: DataFrame, shape: Shape, known: Losses | None, *, since: Position | None
) -> Losses:
    """The counts of a table by its rows from a position on, added to those of all others.

    Without a position all its rows are counted, and `known` says which columns keep their place.
    """
    kept = table.where("_raw is not null")
    if since is None:
        return dict.fromkeys(known or (), 0) | _count(kept, name_lossy(shape))
    # In a form that file statistics can answer.
    own, lsn = F.col("_epoch"), F.col("_commit_lsn")
    new = (own > since.epoch) | ((own == since.epoch) & (lsn >= int(since.commit_lsn)))
    losses = Counter(known)
    losses.update(_count(kept.where(new), name_lossy(shape)))
    return dict(losses)


def _count_swept(
    rows: DataFrame, shape: Shape, base: DataFrame, swept: Sequence[Sweep]
) -> Counter[str]:
    """What the rows of a base have lost that are swept, and that no row replaces."""
    old = base.where("_raw is not null").alias("t").where(is_swept("t", shape, swept))
    gone = old.join(rows.alias("s"), match_keys(shape), "left_anti")
    return _count(gone, name_lossy(shape))


def _count_replaced(rows: DataFrame, shape: Shape, base: DataFrame) -> Counter[str]:
    """What the rows of a base have lost that rows replace, but for what these take over."""
    names = [f"`{name}`" for name in match_names(shape)]
    old = base.where("_raw is not null").select(*names, name_lossy(shape).alias("_lossy"))
    replaced = old.where(F.size("_lossy") > 0).alias("t").join(rows.alias("s"), match_keys(shape))
    kept = F.when(F.col("s._present"), F.col("s._carried")).otherwise(F.array())
    return _count(replaced, F.array_except("t._lossy", kept.cast("array<string>")))


def _count(rows: DataFrame, names: Expression) -> Counter[str]:
    listed = rows.select(F.explode(names).alias("name")).groupBy("name").count().collect()
    return Counter({row[0]: row[1] for row in listed})
