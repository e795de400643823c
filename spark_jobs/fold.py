"""Changes to the state they leave: one row per key.

At the end of a transaction a key has one row at most. Inside one it may have several for a while
(a deferrable key), but whenever a key's last step is an arrival or a renewal, that row is the one
that remains: nothing departed after it. So the last step decides, but for two rare cases that
`lineage` works out: the last step is a departure and its transaction also brought a row (which of
them left?), and a row that moved to another key without sending all its values (whose are they?).

A value not sent is that of the last step of the same row that had it: per column the last step that
speaks of it, which an arrival of a whole row always does. Where none in the range speaks, the value
is that of the target's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.changes import ARRIVAL, DEPARTURE, POSITION, RENEWAL

# What a step says of a column: its row is gone; its value; look under the key it came from.
GONE, SAID, MOVED = 0, 1, 2


def fold_by_last(steps: DataFrame, ids: list[str], unsent: Iterable[int], width: int) -> DataFrame:
    """Reduce steps to the state they leave, one row per key, departed keys included.

    `unsent` are the columns that some step did not send, `width` the number of columns.
    Shape: the ids, `present`, position, `committed_at`, `values`, `carried` (indexes whose value is
    the target's), `lost` (indexes whose value is not known), `unclear` (the row needs `lineage`).
    Order: position; a repeated position is the same step.
    """
    position = F.struct(*POSITION)
    unsent = sorted(unsent)
    last = F.max_by(F.struct("kind", *POSITION, "committed_at", "values"), position)
    birth = F.when(F.col("kind") == ARRIVAL, F.struct("epoch", "commit_lsn"))
    spoken = {i: F.max_by(_speak(i), F.when(_speaks(i), position)) for i in unsent}
    # By key at once: most keys come once, and to reduce them before would only sort them twice.
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
    """Whether a step brought the column's value."""
    held_back = F.coalesce(F.array_contains(F.col("unchanged"), index), F.lit(False))
    return (F.col("kind") != DEPARTURE) & ~held_back


def _speaks(index: int) -> Expression:
    """Whether a step says anything of a column: a renewal that did not send it does not."""
    return (F.col("kind") != RENEWAL) | _is_sent(index)


def _speak(index: int) -> Expression:
    what = F.when(F.col("kind") == DEPARTURE, GONE).when(_is_sent(index), SAID).otherwise(MOVED)
    return F.struct(
        what.alias("what"), F.when(_is_sent(index), F.col("values")[index]).alias("text")
    )


def _fill(values: str, unsent: list[int], width: int) -> Expression:
    """The texts of a row, those not sent taken from the step that last had them."""
    if not unsent:
        return F.col(values)
    texts = [F.col(f"_said{i}.text") if i in unsent else F.col(values)[i] for i in range(width)]
    return F.when(F.col(values).isNotNull(), F.array(*texts))


def _list(indexes: list[int], chosen: Callable[[int], Expression]) -> Expression:
    """The indexes for which a condition holds."""
    if not indexes:
        return F.array().cast("array<int>")
    listed = F.array(*(F.when(chosen(i), F.lit(i)) for i in indexes))
    return F.array_compact(listed).cast("array<int>")
