"""Decides whether a table plan only adds rows to its table, so that it needs no MERGE.

The plan may have other changes besides unshared reads. It only adds rows if the table has no row
with a key that its reads or folded changes name, and if no sweep removes a row of the table.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.delta.direct_parquet import is_plain
from spark_jobs.fast_path.unshared_reads import UnsharedReads
from spark_jobs.fold.outcome import Outcome
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import match_names
from spark_jobs.fold.steps import id_names
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.target.target_table import TargetTable

# The most keys of the table that Spark sends to every task.
_MAX_NEAR = 100_000


def is_addition(
    plan: TablePlan, base: TargetTable | None, unshared: UnsharedReads, outcome: Outcome | None
) -> bool:
    """Whether a table plan only adds rows to its table. False also if this is not certain.

    `base` is None if the plan replaces all rows; the answer is then True. `outcome` is the fold of
    all changes but the unshared reads; None if the plan has no other changes. The plan must have no
    sweeps if none of them removes a row of the base.
    """
    assert plan.schema is not None
    if base is None:
        return True
    assert plan.before is not None
    schema = plan.schema
    if plan.swept or schema.names != plan.before.names:
        return False
    if outcome is not None and _is_touched(
        base.rows, schema, outcome.rows, outcome.least, outcome.greatest
    ):
        return False
    is_met = None
    if unshared.typed is not None and is_plain(base.table):
        is_met = unshared.typed.has_any_key(base.path, base.table)
    if is_met is not None:
        return not is_met
    return not _is_touched(base.rows, schema, unshared.read(), unshared.least, unshared.greatest)


def _is_touched(
    base: DataFrame, schema: TableSchema, rows: DataFrame, least: object, greatest: object
) -> bool:
    """Whether a base may have a row with the key of one of `rows`.

    The first ids of `rows` lie between `least` and `greatest`. The answer is True if too many rows
    of the base have a first id in this range.
    """
    if least is None:
        # No rows, or only NULL ids. An id is NULL if its type cannot hold the text: no row has it.
        return False
    names, ids = match_names(schema), id_names(schema)
    # Spark skips files outside this range. The range may hold other keys: chunks that were read in
    # parallel do not come in the order of keys.
    near = base.where(F.col(f"`{names[0]}`").between(F.lit(least), F.lit(greatest)))
    held = near.select(*(F.col(f"`{n}`").alias(i) for n, i in zip(names, ids, strict=True)))
    count = held.limit(_MAX_NEAR + 1).count()
    if not 0 < count <= _MAX_NEAR:
        return count > 0
    return bool(rows.select(*ids).join(F.broadcast(held), ids, "left_semi").limit(1).count())
