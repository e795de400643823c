"""Fills the holes of versions: the values that the source never sent, once a read brings them.

A version takes the values that its change did not send from the version before it, which was the
same row. If that one lacks a value, so does this one. A read that finds the row as it is brings the
value, and it was the value in all of these versions.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from spark_jobs.fold.rows import match_names, null_if_empty
from spark_jobs.schema.evolution import TableSchema

# The columns that a version lacked before reads confirmed it.
LACKED = "_lacked"


def fill_earlier(found: DataFrame, names: Sequence[str]) -> DataFrame:
    """Fill the holes of versions of a plan that later versions of the plan no longer have.

    `found` has also `LACKED`. `names` identify a key, and `_at` orders the versions of a key.
    """
    columns = _list_filled(found)
    return _fill(found, columns, names, F.col("_at")) if columns else found


def fill_closed(closed: DataFrame, changed: DataFrame, schema: TableSchema) -> DataFrame | None:
    """The closed versions of a history whose holes a plan fills, as they are then; None if none.

    `changed` has the open versions that the plan touched, as they are afterwards, with `LACKED`.
    """
    filled = changed.where(F.col("_continues") & (F.size(_find_filled()) > 0))
    columns = _list_filled(filled)
    if not columns:
        return None
    names = [f"`{name}`" for name in match_names(schema)]
    own = closed.join(filled.select(*names), match_names(schema), "left_semi")
    none = F.array().cast("array<string>")
    older = own.withColumn(LACKED, F.coalesce("_holes", none)).withColumn("_of_plan", F.lit(False))
    both = older.unionByName(filled.withColumn("_of_plan", F.lit(True)))
    fixed = _fill(both, columns, names, F.struct("_from_epoch", "_from_lsn"))
    # The plan may also have closed the versions that it has filled.
    is_fixed = ~F.col("_of_plan") & (F.size(_find_filled()) > 0)
    return fixed.where(is_fixed).select(*(f"`{name}`" for name in closed.columns))


def _find_filled() -> Expression:
    """The columns of a version that reads have filled."""
    return F.array_except(LACKED, _holes())


def _holes() -> Expression:
    return F.coalesce("_holes", F.array().cast("array<string>"))


def _list_filled(found: DataFrame) -> list[str]:
    rows = found.select(F.explode(_find_filled()).alias("name")).distinct().collect()
    return sorted(row["name"] for row in rows)


def _fill(
    found: DataFrame, columns: Sequence[str], names: Sequence[str], order: Expression
) -> DataFrame:
    """Fill columns of versions from later versions of the same row."""
    by_key = Window.partitionBy(*names).orderBy(order)
    life = F.sum(F.when(F.coalesce("_continues", F.lit(False)), 0).otherwise(1)).over(by_key)
    later = (
        Window.partitionBy(*names, "_life").orderBy(order).rowsBetween(1, Window.unboundedFollowing)
    )
    found = found.withColumn("_life", life).withColumns(
        {f"_known{i}": _find_known(name, later) for i, name in enumerate(columns)}
    )
    values: dict[str, Expression] = {}
    filled: list[Expression] = []
    raws: list[Expression] = [F.coalesce("_raw", F.create_map().cast("map<string,string>"))]
    for i, name in enumerate(columns):
        is_filled = F.array_contains(_holes(), name) & F.coalesce(
            F.col(f"_known{i}.is_filled"), F.lit(False)
        )
        values[name] = F.when(is_filled, F.col(f"_known{i}.value")).otherwise(F.col(f"`{name}`"))
        filled.append(F.when(is_filled, F.lit(name)))
        raw = F.col(f"_known{i}.raw")
        is_raw = is_filled & raw.isNotNull()
        none = F.create_map().cast("map<string,string>")
        raws.append(F.when(is_raw, F.create_map(F.lit(name), raw)).otherwise(none))
    values["_raw"] = null_if_empty(F.map_concat(*raws))
    values["_holes"] = null_if_empty(F.array_except(_holes(), F.array_compact(F.array(*filled))))
    kinds = {field.name: field for field in found.schema.fields}
    return found.select(
        *(
            values.get(name, F.col(f"`{name}`")).alias(name, metadata=kinds[name].metadata)
            for name in found.columns
            if name != "_life" and not name.startswith("_known")
        )
    )


def _find_known(name: str, later: WindowSpec) -> Expression:
    """What the next version that has a value of a column says: the value, and if a read filled it.

    NULL if no later version of the row has a value.
    """
    has_value = ~F.array_contains(_holes(), name)
    known = F.struct(
        F.array_contains(LACKED, name).alias("is_filled"),
        F.col(f"`{name}`").alias("value"),
        F.try_element_at("_raw", F.lit(name)).alias("raw"),
    )
    return F.first(F.when(has_value, known), ignorenulls=True).over(later)
