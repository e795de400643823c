"""Finds what removed a row, and when: its own departure, a TRUNCATE or a sweep.

If several could have removed it, the first in the log did. The answer depends on the log alone, and
not on where rounds begin and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.sweeps import Sweep, is_swept
from spark_jobs.log.reading import POINT_TYPE, POSITION, LogPoint, write_points
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True, slots=True)
class RemovalPoints:
    """What removes rows of a table besides changes of their keys, each in log order."""

    sweeps: Sequence[Sweep] = ()
    truncates: Sequence[LogPoint] = ()

    @classmethod
    def of(cls, plan: TablePlan) -> RemovalPoints:
        """The sweeps and TRUNCATEs of a plan."""
        return cls(plan.sweeps, plan.list_truncates())

    def find(self, rows: str, schema: TableSchema, departure: Expression | None) -> Expression:
        """What removed a row of the table, alias `rows`; NULL if nothing did.

        `departure` is when its key departed; NULL if the key did not.
        """
        none = F.lit(None).cast(POINT_TYPE)
        own = F.struct(*(F.col(f"{rows}._{name}").alias(name) for name in POSITION))
        found = [none, none if departure is None else departure.cast(POINT_TYPE)]
        swept = none
        for sweep in reversed(self.sweeps):
            point = F.element_at(write_points([sweep.at]), 1)
            swept = F.when(is_swept(rows, schema, [sweep]), point).otherwise(swept)
        found.append(swept)
        if self.truncates:
            later = F.filter(
                write_points(self.truncates),
                lambda point: F.struct(*(point[name].alias(name) for name in POSITION)) > own,
            )
            found.append(F.try_element_at(later, F.lit(1)))
        return F.least(*found)
