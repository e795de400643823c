"""A stretch that adds rows to a table and changes none: those rows, written without a MERGE.

Its changes may be many more than lone reads; what counts is what they leave, and that the table has
no row of a key that they name, nor one that a sweep removes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.changes import id_names
from spark_jobs.lone_reads import LoneReads
from spark_jobs.outcome import Outcome
from spark_jobs.rows import apply_rows, match_names
from spark_jobs.shapes import Shape
from spark_jobs.stretch import Stretch

# So many keys are sent to every task.
_MOST_NEAR = 100_000


def find_addition(
    stretch: Stretch, base: DataFrame | None, lone: LoneReads, outcome: Outcome | None
) -> DataFrame | None:
    """The rows that a stretch adds to a base (None where it counts for nothing).

    `outcome` is what all but its lone reads leave; the stretch has the sweeps alone that reach a
    row of the base. None where it changes rows too.
    """
    assert stretch.shape is not None
    shape = stretch.shape
    if base is not None and not _is_addition(stretch, base, lone, outcome):
        return None
    rows = apply_rows(None, lone.rows, shape, frozenset(), swept=())
    if outcome is None:
        return rows
    return rows.unionByName(apply_rows(None, outcome.rows, shape, outcome.carried, swept=()))


def _is_addition(
    stretch: Stretch, base: DataFrame, lone: LoneReads, outcome: Outcome | None
) -> bool:
    assert stretch.shape is not None
    assert stretch.before is not None
    shape = stretch.shape
    if stretch.swept or shape.names != stretch.before.names:
        return False
    return not any(
        _is_touched(base, shape, one.rows, one.least, one.greatest)
        for one in (lone, outcome)
        if one is not None
    )


def _is_touched(
    base: DataFrame, shape: Shape, rows: DataFrame, least: object, greatest: object
) -> bool:
    """Whether a base may have a row of the keys of some rows, whose first ids lie between two."""
    if least is None:
        return False  # NULL, as an id is that its type does not hold, is no row's.
    names, ids = match_names(shape), id_names(shape)
    # By these bounds files are skipped; chunks that were read side by side do not come in order.
    near = base.where(F.col(f"`{names[0]}`").between(F.lit(least), F.lit(greatest)))
    held = near.select(*(F.col(f"`{n}`").alias(i) for n, i in zip(names, ids, strict=True)))
    count = held.limit(_MOST_NEAR + 1).count()
    if not 0 < count <= _MOST_NEAR:
        return count > 0
    return bool(rows.select(*ids).join(F.broadcast(held), ids, "left_semi").limit(1).count())
