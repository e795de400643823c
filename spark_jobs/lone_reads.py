"""Reads that nothing else in their stretch touches: rows as they are, without a fold.

A key that one read names, and no other change, has that read's row. Such reads are typed straight
from the log, file by file where they are plain: their texts are neither shuffled nor kept, which
is most of what bringing in a table costs. Walgate counts how often a key is named, and does not
trust a backfill's plan for that: a key that is named again (a chunk staged twice, backfills that
overlap, an entry that is in the log twice, a change of the stream, a row that moved) goes through
the fold with all that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cdc_core.vocabulary import Operation
from spark_jobs.changes import POSITION, ROW_OPERATIONS, id_names
from spark_jobs.log_files import LogRange
from spark_jobs.rows import identify_rows, type_rows
from spark_jobs.stretch import Read, Stretch, give
from spark_jobs.sweeps import is_swept
from spark_jobs.typed_reads import TypedReads, typing_reads

# Fewer are folded: to type them in files takes half a second, however few they are.
FEW_READS = 10_000
# So many keys are sent to every task.
_MOST_OTHERS = 100_000
_KEPT = (*POSITION, "committed_at", "values")


@dataclass(frozen=True, slots=True)
class LoneReads:
    """The rows of a stretch that reads alone name, in the table's columns, and the other steps.

    `read` gives the rows, which few need. `others` is None where every step is a lone read. First
    ids lie between `least` and `greatest`. `typed` has just these rows in files; None where they
    are in none.
    """

    read: Read
    others: DataFrame | None
    least: object
    greatest: object
    typed: TypedReads | None


@contextmanager
def setting_apart(
    session: SparkSession, stretch: Stretch, above: LogRange | None, path: Path
) -> Iterator[LoneReads | None]:
    """Tell lone reads from other steps; None where they are few, or too much else is among them.

    `above` is a range of the log: the stretch has every entry of its table there. It is None if the
    stretch has not. `path` is the folder of its table. What is lent holds until the block ends.
    """
    reads = _only(stretch, Operation.READ)
    rest = _only(stretch, *(ROW_OPERATIONS - {Operation.READ}))
    if _count(reads) < FEW_READS or _count(rest) > _MOST_OTHERS:
        yield None
    elif above is None:
        yield _set_apart(session, stretch, reads, rest, None)
    else:
        with typing_reads(session, stretch, above, path) as typed:
            yield _set_apart(session, stretch, reads, rest, typed)


def _set_apart(
    session: SparkSession, stretch: Stretch, reads: Stretch, rest: Stretch, typed: TypedReads | None
) -> LoneReads | None:
    assert stretch.shape is not None
    shape, ids = stretch.shape, id_names(stretch.shape)
    # Of a row that moved there is a step for the key that it left, too.
    changed = rest.take_steps() if _count(rest) else None

    def read() -> DataFrame:
        if typed is None:
            return _type(reads.take_steps(), stretch)
        return identify_rows(typed.rows, shape)

    if typed is None:
        named = _count_named(reads.take_steps(), changed, ids)
    else:
        named = _find_named(session, typed, changed, ids)
    if named.count > _MOST_OTHERS:
        return None
    if not named.touched:
        return LoneReads(read, changed, named.least, named.greatest, typed)
    # NULL, as an id is that its type does not hold, is counted as a key too.
    again = F.broadcast(named.read_again().alias("a"))
    same = [F.col(f"r.{name}").eqNullSafe(F.col(f"a.{name}")) for name in ids]
    others, rows = (
        of_reads.alias("r").join(again, same, kind)
        for of_reads, kind in ((reads.take_steps(), "left_semi"), (read(), "left_anti"))
    )
    others = others if changed is None else others.unionByName(changed)
    return LoneReads(give(rows), others, named.least, named.greatest, None)


@dataclass(frozen=True, slots=True)
class _Named:
    """The keys that are named again; how many, how many of them by a read; what reads name."""

    read_again: Read
    count: int
    touched: int
    least: object
    greatest: object


def _count_named(read: DataFrame, changed: DataFrame | None, ids: list[str]) -> _Named:
    bounds, found = Observation(), Observation()
    named = read.select(*ids, F.lit(1).alias("reads"), F.lit(0).alias("changes"))
    named = named.observe(bounds, F.min(ids[0]).alias("least"), F.max(ids[0]).alias("greatest"))
    if changed is not None:
        others = changed.select(*ids, F.lit(0).alias("reads"), F.lit(1).alias("changes"))
        named = named.unionAll(others)
    counted = named.groupBy(*ids).agg(*(F.sum(name).alias(name) for name in ("reads", "changes")))
    again = counted.where((F.col("reads") > 1) | (F.col("changes") > 0))
    again = again.observe(
        found, F.count(F.lit(1)).alias("count"), F.count_if(F.col("reads") > 0).alias("touched")
    )
    again = again.select(*ids).localCheckpoint()
    ends, counts = bounds.get, found.get
    return _Named(give(again), counts["count"], counts["touched"], ends["least"], ends["greatest"])


def _find_named(
    session: SparkSession, typed: TypedReads, changed: DataFrame | None, ids: list[str]
) -> _Named:
    keys = None
    if changed is not None:
        keys = changed.select(*ids).toArrow().cast(typed.keys.schema)
    again, touched = typed.find_again(keys)
    read_again = partial(session.createDataFrame, again)
    return _Named(read_again, again.num_rows, touched, typed.least, typed.greatest)


def _type(read: DataFrame, stretch: Stretch) -> DataFrame:
    assert stretch.shape is not None
    ids = id_names(stretch.shape)
    rows = type_rows(read.select(*ids, F.lit(True).alias("present"), *_KEPT), stretch.shape)
    if stretch.swept:
        rows = rows.alias("s").where(~is_swept("s", stretch.shape, stretch.swept))
    return rows


def _only(stretch: Stretch, *operations: Operation) -> Stretch:
    """The changes of some kinds, and what cuts them off."""
    wanted = [operation.value for operation in operations]
    return replace(
        stretch,
        read=lambda: stretch.read().where(F.col("op").isin(*wanted)),
        spans=tuple(
            span for span in stretch.spans if span.operation in {*wanted, Operation.TRUNCATE}
        ),
    )


def _count(stretch: Stretch) -> int:
    """The row changes, without the spans that a TRUNCATE cut off whole."""
    # Of an input that turns out to be empty Spark gives no observation at all.
    cut = stretch.truncated_at
    changes = [span for span in stretch.spans if span.operation in ROW_OPERATIONS]
    return sum(span.entries for span in changes if cut is None or span.last > cut)
