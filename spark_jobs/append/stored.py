"""Gives the rows that a target of entries has the columns that a plan asks for."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from spark_jobs.append.entries import forget_values, list_fields, rename_old
from spark_jobs.append.plan import EntryPlan
from spark_jobs.fold.reshaping import reshape_columns


def keeps_rows(plan: EntryPlan) -> bool:
    """Whether the rows of a target stay as they are: at most, it gets more columns."""
    before, shape = plan.before, plan.shape
    assert before is not None
    assert shape is not None
    after, width = shape.schema, len(before.columns)
    same = replace(after, columns=after.columns[:width], chosen=after.chosen[:width])
    return before == same and not shape.forgotten


def reshape_stored(rows: DataFrame, plan: EntryPlan) -> DataFrame:
    """The rows of a target in the columns of a plan."""
    before, shape = plan.before, plan.shape
    assert before is not None
    assert shape is not None
    after, width = shape.schema, len(before.columns)
    old = [i for i in shape.forgotten if i < width]
    kept = forget_values(rows, before, old) if old else rows
    # What a rule must not show is gone, so the mark of the rule changes no value.
    marked = [
        replace(column, hashed_by=after.columns[i].hashed_by)
        for i, column in enumerate(before.columns)
    ]
    matches = [i if i < width else None for i in range(len(after.columns))]
    reshaped = reshape_columns(kept, replace(before, columns=tuple(marked)), after, matches)
    names = [field.name for field in list_fields(after)]
    return rename_old(reshaped, before, after).select(*(f"`{name}`" for name in names))
