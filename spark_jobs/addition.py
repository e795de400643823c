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
from spark_jobs.plain_files import is_plain
from spark_jobs.rows import match_names
from spark_jobs.shapes import Shape
from spark_jobs.stretch import Stretch
from spark_jobs.table_before import Base

# So many keys are sent to every task.
_MOST_NEAR = 100_000


def is_addition(
    stretch: Stretch, base: Base | None, lone: LoneReads, outcome: Outcome | None
) -> bool:
    """Whether a stretch only adds rows to a base (None where it counts for nothing).

    `outcome` is what all but its lone reads leave; the stretch has the sweeps alone that reach a
    row of the base.
    """
    assert stretch.shape is not None
    if base is None:
        return True
    assert stretch.before is not None
    shape = stretch.shape
    if stretch.swept or shape.names != stretch.before.names:
        return False
    if outcome is not None and _is_touched(
        base.rows, shape, outcome.rows, outcome.least, outcome.greatest
    ):
        return False
    is_met = None
    if lone.typed is not None and is_plain(base.table):
        is_met = lone.typed.do_meet(base.path, base.table)
    if is_met is not None:
        return not is_met
    return not _is_touched(base.rows, shape, lone.read(), lone.least, lone.greatest)


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
