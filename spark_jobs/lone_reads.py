"""Reads that nothing else in their stretch touches: rows as they are, without a fold.

A key that one read names, and no other change, has that read's row. Such reads are typed straight
from the log: their texts are neither shuffled nor kept meanwhile, which is most of what bringing in
a table costs. That a key is named once is counted, not taken from what a backfill promises: a key
that is named again (a chunk staged twice, backfills that overlap, an entry that is in the log
twice, a change of the stream, a row that moved) goes through the fold with all that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from cdc_core.vocabulary import Operation
from spark_jobs.changes import POSITION, ROW_OPERATIONS, id_names
from spark_jobs.rows import type_rows
from spark_jobs.stretch import Stretch
from spark_jobs.sweeps import is_swept

# To count the keys of fewer costs what folding them does.
FEW_READS = 100_000
# So many keys are sent to every task.
_MOST_OTHERS = 100_000
_KEPT = (*POSITION, "committed_at", "values")


@dataclass(frozen=True, slots=True)
class LoneReads:
    """The rows of a stretch that reads alone name, in the table's columns, and the other steps.

    `others` is None where every step is a lone read. First ids lie between `least` and `greatest`.
    """

    rows: DataFrame
    others: DataFrame | None
    least: object
    greatest: object


def set_apart(stretch: Stretch) -> LoneReads | None:
    """Tell lone reads from other steps; None where they are few, or too much else is among them."""
    reads = _only(stretch, Operation.READ)
    rest = _only(stretch, *(ROW_OPERATIONS - {Operation.READ}))
    if _count(reads) < FEW_READS or _count(rest) > _MOST_OTHERS:
        return None
    assert stretch.shape is not None
    shape, ids = stretch.shape, id_names(stretch.shape)
    read, found = reads.take_steps(), Observation()
    bounds = (F.min(ids[0]).alias("least"), F.max(ids[0]).alias("greatest"))
    named = read.select(*ids, F.lit(1).alias("times")).observe(found, *bounds)
    if _count(rest):
        # A key that one change names is named twice: by a read too, or it is no read's. Of a row
        # that moved there is a step for the key that it left, too.
        changed = rest.take_steps().select(*ids, F.lit(2).alias("times"))
        named = named.unionAll(changed)
    again, count = _compute(named.groupBy(*ids).agg(F.sum("times").alias("times")), ids)
    if count > _MOST_OTHERS:
        return None
    others = None
    if count:
        # NULL, as an id is that its type does not hold, is counted as a key too.
        same = [F.col(f"r.{name}").eqNullSafe(F.col(f"a.{name}")) for name in ids]
        of_others = read.alias("r").join(F.broadcast(again.alias("a")), same, "left_semi")
        read = read.alias("r").join(F.broadcast(again.alias("a")), same, "left_anti")
        others = of_others.unionByName(rest.take_steps()) if _count(rest) else of_others
    rows = type_rows(read.select(*ids, F.lit(True).alias("present"), *_KEPT), shape)
    if stretch.swept:
        rows = rows.alias("s").where(~is_swept("s", shape, stretch.swept))
    return LoneReads(rows, others, found.get["least"], found.get["greatest"])


def _only(stretch: Stretch, *operations: Operation) -> Stretch:
    """The changes of some kinds, and what cuts them off."""
    wanted = [operation.value for operation in operations]
    return replace(
        stretch,
        entries=stretch.entries.where(F.col("op").isin(*wanted)),
        spans=tuple(
            span for span in stretch.spans if span.operation in {*wanted, Operation.TRUNCATE}
        ),
    )


def _count(stretch: Stretch) -> int:
    return sum(span.entries for span in stretch.spans if span.operation in ROW_OPERATIONS)


def _compute(counted: DataFrame, ids: list[str]) -> tuple[DataFrame, int]:
    """The keys that are named again, computed once, and how many."""
    found = Observation()
    again = counted.where(F.col("times") > 1).select(*ids)
    again = again.observe(found, F.count(F.lit(1)).alias("count")).localCheckpoint()
    return again, found.get["count"]
