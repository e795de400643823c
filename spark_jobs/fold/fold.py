"""Folds steps to the state that they leave: one row for each key.

At the end of a transaction a key has at most one row. Inside a transaction it may have several, if
the key is deferrable. If the last step of a key is an arrival or a renewal, its row remains: no row
departed after it. So the last step decides, except in two rare cases, which `multi_row` solves:

- The last step is a departure, and its transaction also brought a row: which of the rows left?
- A row moved to another key, and the source did not send all its values: which row had them?

If a value was not sent, the row keeps the value that it had. For each column, the fold takes the
value from the last step that determines it; the arrival of a whole row always does. If no step in
the log range determines it, the value is that of the target's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.fold.steps import ARRIVAL, DEPARTURE, RENEWAL
from spark_jobs.log.reading import POSITION

# What a step says about a column: its row has left; its value; the value is under the old key.
GONE, SAID, MOVED = 0, 1, 2


def fold_by_last(steps: DataFrame, ids: list[str], unsent: Iterable[int], width: int) -> DataFrame:
    """Reduce steps to the state that they leave, one row for each key, also if it has departed.

    `unsent` has the indexes of columns that some step did not send; `width` counts the columns.
    Shape: the ids, `present`, position, `committed_at`, `values`, `carried` (indexes whose value is
    the target's), `lost` (indexes of missing values), `unclear` (the row needs `multi_row`).
    Order: position; a repeated position is the same step.
    """
    position = F.struct(*POSITION)
    unsent = sorted(unsent)
    last = F.max_by(F.struct("kind", *POSITION, "committed_at", "values"), position)
    birth = F.when(F.col("kind") == ARRIVAL, F.struct("epoch", "commit_lsn"))
    spoken = {i: F.max_by(_speak(i), F.when(_speaks(i), position)) for i in unsent}
    # Shuffle by key first. Most keys occur once: a partial aggregation before the shuffle would
    # reduce little, and would sort the steps a second time.
    folded = (
        steps.repartition(*ids)
        .groupBy(*ids)
        .agg(
            last.alias("_last"),
            F.max(birth).alias("_birth"),
            *(said.alias(f"_said{i}") for i, said in spoken.items()),
        )
    )
    left = F.col("_last.kind") == DEPARTURE
    brought = F.col("_birth") == F.struct("_last.epoch", "_last.commit_lsn")
    unclear = left & F.coalesce(brought, F.lit(False))
    for i in unsent:
        unclear |= ~left & F.coalesce(F.col(f"_said{i}.what") == MOVED, F.lit(False))
    return folded.select(
        *ids,
        (~left).alias("present"),
        *(F.col(f"_last.{name}") for name in (*POSITION, "committed_at")),
        _fill("_last.values", unsent, width).alias("values"),
        _list(unsent, lambda i: F.col(f"_said{i}.what").isNull()).alias("carried"),
        _list(unsent, lambda i: F.col(f"_said{i}.what") == GONE).alias("lost"),
        unclear.alias("unclear"),
    )


def _is_sent(index: int) -> Expression:
    """Whether a step has the value of a column."""
    held_back = F.coalesce(F.array_contains(F.col("unchanged"), index), F.lit(False))
    return (F.col("kind") != DEPARTURE) & ~held_back


def _speaks(index: int) -> Expression:
    """Whether a step determines a column. A renewal without the column's value does not."""
    return (F.col("kind") != RENEWAL) | _is_sent(index)


def _speak(index: int) -> Expression:
    what = F.when(F.col("kind") == DEPARTURE, GONE).when(_is_sent(index), SAID).otherwise(MOVED)
    return F.struct(
        what.alias("what"), F.when(_is_sent(index), F.col("values")[index]).alias("text")
    )


def _fill(values: str, unsent: list[int], width: int) -> Expression:
    """Return the texts of a row; a text that was not sent is from the last step that had it."""
    if not unsent:
        return F.col(values)
    texts = [F.col(f"_said{i}.text") if i in unsent else F.col(values)[i] for i in range(width)]
    return F.when(F.col(values).isNotNull(), F.array(*texts))


def _list(indexes: list[int], chosen: Callable[[int], Expression]) -> Expression:
    """List the indexes for which a condition holds."""
    if not indexes:
        return F.array().cast("array<int>")
    listed = F.array(*(F.when(chosen(i), F.lit(i)) for i in indexes))
    return F.array_compact(listed).cast("array<int>")
