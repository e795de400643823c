"""Splits unshared reads, which need no fold, from the other changes of a table plan.

If one read names a key, and no other change does, the key has the row of that read. Walgate types
such reads straight from the log, file by file if Arrow can convert them. Their texts are neither
shuffled nor kept, which is most of the cost of bringing in a table.

Walgate counts how often each key is named, and does not trust a backfill's plan for that. A key is
named again if a chunk was staged twice, backfills overlap, an entry is in the log twice, the stream
changed the row, or the row moved. All reads and changes of such a key go through the fold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cdc_core.vocabulary import Operation
from spark_jobs.delta.attempts import Attempt
from spark_jobs.fast_path.arrow_copy import TypedReads, type_reads
from spark_jobs.fold.announcements import EntriesQuery
from spark_jobs.fold.outcome import Outcome, measure
from spark_jobs.fold.plan import TablePlan, as_query
from spark_jobs.fold.rows import identify_rows, type_rows
from spark_jobs.fold.steps import id_names
from spark_jobs.fold.sweeps import is_swept
from spark_jobs.log.files import LogRange
from spark_jobs.log.reading import POSITION, ROW_OPERATIONS
from spark_jobs.schema.evolution import TableSchema

# The most keys that Spark sends to every task.
_MAX_OTHERS = 100_000
_KEPT = (*POSITION, "committed_at", "values")


@dataclass(frozen=True, slots=True)
class UnsharedReads:
    """The unshared reads of a table plan as rows in the table's columns, and the other steps.

    `read` makes the query of the rows, which few callers need. `others` is None if every step is an
    unshared read. First ids lie between `least` and `greatest`. `typed` has exactly these rows in
    files; None if they are in no files.
    """

    read: EntriesQuery
    others: DataFrame | None
    least: object
    greatest: object
    typed: TypedReads | None


def split_unshared(
    session: SparkSession,
    plan: TablePlan,
    above: LogRange | None,
    attempt: Attempt,
    *,
    few_reads: int,
) -> UnsharedReads | None:
    """Split the unshared reads of a table plan from its other steps.

    None if the plan has fewer than `few_reads` reads, too many other changes or too many shared
    keys. `above` is the log range, if the plan contains every entry of its table in it; else None.
    The result is valid as long as the attempt, which may write files for it.
    """
    reads = _only(plan, Operation.READ)
    rest = _only(plan, *(ROW_OPERATIONS - {Operation.READ}))
    if _count(reads) < few_reads or _count(rest) > _MAX_OTHERS:
        return None
    typed = None if above is None else type_reads(session, plan, above, attempt)
    return _set_apart(session, plan, reads, rest, typed)


def add_unshared(outcome: Outcome | None, unshared: UnsharedReads, schema: TableSchema) -> Outcome:
    """Add unshared reads to the outcome of the other changes; None if no others exist."""
    rows = unshared.read() if outcome is None else unshared.read().unionByName(outcome.rows)
    return measure(rows, schema, frozenset() if outcome is None else outcome.carried)[0]


def _set_apart(
    session: SparkSession,
    plan: TablePlan,
    reads: TablePlan,
    rest: TablePlan,
    typed: TypedReads | None,
) -> UnsharedReads | None:
    assert plan.schema is not None
    schema, ids = plan.schema, id_names(plan.schema)
    # A row that moved has a step for the key that it left, too.
    changed = rest.take_steps() if _count(rest) else None

    def read() -> DataFrame:
        if typed is None:
            return _type(reads.take_steps(), plan)
        return identify_rows(typed.rows, schema)

    if typed is None:
        shared = _count_shared(reads.take_steps(), changed, ids)
    else:
        shared = _find_shared(session, typed, changed, ids)
    if shared.count > _MAX_OTHERS:
        return None
    if not shared.read_count:
        return UnsharedReads(read, changed, shared.least, shared.greatest, typed)
    # An id is NULL if its type cannot hold the text. NULL is counted as a key, too.
    keys = F.broadcast(shared.query().alias("k"))
    same = [F.col(f"r.{name}").eqNullSafe(F.col(f"k.{name}")) for name in ids]
    others, rows = (
        of_reads.alias("r").join(keys, same, kind)
        for of_reads, kind in ((reads.take_steps(), "left_semi"), (read(), "left_anti"))
    )
    others = others if changed is None else others.unionByName(changed)
    return UnsharedReads(as_query(rows), others, shared.least, shared.greatest, None)


@dataclass(frozen=True, slots=True)
class _SharedKeys:
    """The keys that several reads have, or any other change.

    `query` makes the query of the keys, `count` counts them, `read_count` counts those that a read
    has. The first ids of all reads lie between `least` and `greatest`.
    """

    query: EntriesQuery
    count: int
    read_count: int
    least: object
    greatest: object


def _count_shared(read: DataFrame, changed: DataFrame | None, ids: list[str]) -> _SharedKeys:
    bounds, found = Observation(), Observation()
    named = read.select(*ids, F.lit(1).alias("reads"), F.lit(0).alias("changes"))
    named = named.observe(bounds, F.min(ids[0]).alias("least"), F.max(ids[0]).alias("greatest"))
    if changed is not None:
        others = changed.select(*ids, F.lit(0).alias("reads"), F.lit(1).alias("changes"))
        named = named.unionAll(others)
    counted = named.groupBy(*ids).agg(*(F.sum(name).alias(name) for name in ("reads", "changes")))
    shared = counted.where((F.col("reads") > 1) | (F.col("changes") > 0))
    shared = shared.observe(
        found, F.count(F.lit(1)).alias("count"), F.count_if(F.col("reads") > 0).alias("read_count")
    )
    shared = shared.select(*ids).localCheckpoint()
    ends, counts = bounds.get, found.get
    return _SharedKeys(
        as_query(shared), counts["count"], counts["read_count"], ends["least"], ends["greatest"]
    )


def _find_shared(
    session: SparkSession, typed: TypedReads, changed: DataFrame | None, ids: list[str]
) -> _SharedKeys:
    keys = None
    if changed is not None:
        keys = changed.select(*ids).toArrow().cast(typed.keys.schema)
    shared, read_count = typed.find_shared_keys(keys)
    query = partial(session.createDataFrame, shared)
    return _SharedKeys(query, shared.num_rows, read_count, typed.least, typed.greatest)


def _type(read: DataFrame, plan: TablePlan) -> DataFrame:
    assert plan.schema is not None
    ids = id_names(plan.schema)
    rows = type_rows(read.select(*ids, F.lit(True).alias("present"), *_KEPT), plan.schema)
    if plan.swept:
        rows = rows.alias("s").where(~is_swept("s", plan.schema, plan.swept))
    return rows


def _only(plan: TablePlan, *operations: Operation) -> TablePlan:
    """Return the plan with only the changes of some operations, and its TRUNCATEs."""
    wanted = [operation.value for operation in operations]
    return replace(
        plan,
        read=lambda: plan.read().where(F.col("op").isin(*wanted)),
        summaries=tuple(
            summary
            for summary in plan.summaries
            if summary.operation in {*wanted, Operation.TRUNCATE}
        ),
    )


def _count(plan: TablePlan) -> int:
    """Count the row changes, without range summaries that lie wholly before the last TRUNCATE."""
    # Without this, an input could be empty. Spark then gives no observation at all.
    cut = plan.truncated_at
    changes = [summary for summary in plan.summaries if summary.operation in ROW_OPERATIONS]
    return sum(summary.entries for summary in changes if cut is None or summary.last > cut)
