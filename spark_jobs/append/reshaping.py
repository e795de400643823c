"""Gives rows of a target of entries the columns of a later schema.

Entries of a log range go through the same schemas, one after the other. So it does not matter in
which merge an entry came.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.vocabulary import Operation
from spark_jobs.append.entries import list_fields
from spark_jobs.append.evolution import EntrySchema
from spark_jobs.fold.reshaping import reshape_columns
from spark_jobs.fold.rows import null_if_empty
from spark_jobs.schema.evolution import TableSchema

_WITH_VALUES = (Operation.INSERT.value, Operation.UPDATE.value, Operation.READ.value)


def reshape_entries(rows: DataFrame, before: EntrySchema, after: EntrySchema) -> DataFrame:
    """The rows of a schema in the next one, without the values that it hides."""
    old, new = before.table, after.table
    width = len(old.columns)
    hidden = {index for index in after.hidden if index < width}
    if old == new and not hidden:
        return rows
    kept = _hide_values(rows, old, hidden) if hidden else rows
    # Hidden values are NULL by now. So the mark of the rule changes no value.
    marked = [
        replace(column, hashed_by=new.columns[i].hashed_by) for i, column in enumerate(old.columns)
    ]
    matches = [i if i < width else None for i in range(len(new.columns))]
    reshaped = reshape_columns(kept, replace(old, columns=tuple(marked)), new, matches)
    names = [field.name for field in list_fields(new)]
    return _rename_old(reshaped, old, new).select(*(f"`{name}`" for name in names))


def _hide_values(rows: DataFrame, schema: TableSchema, hidden: Collection[int]) -> DataFrame:
    """Set columns to NULL. A row that had values names them in `_holes`.

    `_detail` may have the texts of a key, or of a whole row that nobody could decode. So it goes.
    """
    names = F.array(*(F.lit(schema.names[i]) for i in sorted(hidden)))
    held = F.coalesce(F.col("_holes"), F.array().cast("array<string>"))
    holes = F.when(F.col("_op").isin(*_WITH_VALUES), F.array_union(held, names)).otherwise(held)
    changed = {"_holes": null_if_empty(holes), "_detail": F.lit(None).cast("string")}
    for name in ("_raw", "_old"):
        shown = F.map_filter(name, lambda key, _: ~F.array_contains(names, key))
        changed[name] = null_if_empty(shown)
    for i in hidden:
        changed[schema.names[i]] = F.lit(None).cast(rows.schema[schema.names[i]].dataType)
    return rows.select(
        *(
            changed.get(name, F.col(f"`{name}`")).alias(name, metadata=rows.schema[name].metadata)
            for name in rows.columns
        )
    )


def _rename_old(rows: DataFrame, before: TableSchema, after: TableSchema) -> DataFrame:
    """Give the texts in `_old` the names that their columns have now."""
    pairs = zip(before.names, after.names, strict=False)
    renamed = [(one, other) for one, other in pairs if one != other]
    if not renamed:
        return rows
    names = F.create_map(*(F.lit(word) for pair in renamed for word in pair))
    old = F.transform_keys("_old", lambda name, _: F.coalesce(names[name], name))
    return rows.withColumn("_old", old)
