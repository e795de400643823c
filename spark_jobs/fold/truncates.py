"""Numbers steps by the TRUNCATEs before them. Two steps with other numbers never share a row."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.fold.steps import TRUNCATES
from spark_jobs.log.reading import POSITION, LogPoint, write_points


def number_by_truncates(
    steps: DataFrame, names: list[str], truncates: Sequence[LogPoint]
) -> tuple[DataFrame, list[str]]:
    """Number steps by the TRUNCATEs before them; return the steps, and the ids of their rows.

    A step with a TRUNCATE after it in its own transaction leaves no row, so it is left out.
    """
    if not truncates:
        return steps, names
    position = F.struct(*POSITION)
    points = write_points(truncates)
    before = F.size(F.filter(points, lambda point: _locate(point) < position)).cast("int")
    is_truncated = F.exists(
        points,
        lambda point: (
            (point["epoch"] == F.col("epoch"))
            & (point["commit_lsn"] == F.col("commit_lsn"))
            & (point["seq"] > F.col("seq"))
        ),
    )
    origin = F.struct(*(F.col(f"_from.{name}").alias(name) for name in names), F.col(TRUNCATES))
    numbered = steps.where(~is_truncated).withColumn(TRUNCATES, before)
    return (
        numbered.withColumn("_from", F.when(F.col("_from").isNotNull(), origin)),
        [*names, TRUNCATES],
    )


def _locate(point: Expression) -> Expression:
    return F.struct(*(point[name].alias(name) for name in POSITION))
