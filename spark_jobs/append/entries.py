"""Turns entries of the log into rows of a target of entries, each with its values as sent.

Shape: the columns of `fold/rows.py::table_fields`; then `_op`; `_old` (by column name, the texts of
the old row that the source sent); `_detail` (what else the log says of the entry, as JSON);
`_end_lsn` (the bound from which on a reader sees the entry). A row of a DELETE, TRUNCATE or sweep
has no values. `_holes` names the columns that an UPDATE did not send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Position, Relation, ReplicaIdentity
from spark_jobs.append.shape import EntryShape
from spark_jobs.fold.rows import (
    null_if_empty,
    select_values,
    table_fields,
    type_values,
)
from spark_jobs.log.reading import POSITION, write_position
from spark_jobs.schema.evolution import TableSchema

_TEXTS = T.MapType(T.StringType(), T.StringType())
_OWN_FIELDS = (
    T.StructField("_op", T.StringType()),
    T.StructField("_old", _TEXTS),
    T.StructField("_detail", T.StringType()),
    T.StructField("_end_lsn", T.LongType()),
)


def list_fields(schema: TableSchema) -> list[T.StructField]:
    """The columns of a target of entries, with the metadata that hold its schema."""
    return [*table_fields(schema), *_OWN_FIELDS]


def make_rows(
    entries: DataFrame,
    shape: EntryShape,
    relations: Mapping[int, Relation],
    forgotten: Mapping[int, Position],
) -> DataFrame:
    """Make the rows of entries of one table, in log order. A repeated position is one entry.

    `forgotten` has, by index in the schema, the position below which a column has no value.
    """
    schema = shape.schema
    once = entries.dropDuplicates([*POSITION]).orderBy(*POSITION)
    version = F.col("relation_version")
    values, lost, old = (F.lit(None).cast(kind) for kind in ("array<string>", "array<int>", _TEXTS))
    for number, relation in relations.items():
        places, is_own = shape.places[number], version == number
        values = F.when(is_own, _place_values(schema, places, forgotten)).otherwise(values)
        lost = F.when(is_own, _place_unsent(places, forgotten)).otherwise(lost)
        old = F.when(is_own, _name_old(schema, relation, places, forgotten)).otherwise(old)
    placed = once.select(
        *POSITION,
        *("committed_at", "op", "detail", "end_lsn"),
        values.alias("values"),
        lost.alias("lost"),
        old.alias("old"),
    )
    typed, columns = type_values(placed, schema)
    own = {"_op": "op", "_old": "old", "_detail": "detail", "_end_lsn": "end_lsn"}
    others = {name: F.col(found) for name, found in own.items()}
    return typed.select(*columns, *select_values(others, _OWN_FIELDS))


def forget_values(rows: DataFrame, schema: TableSchema, indexes: Sequence[int]) -> DataFrame:
    """Remove the values of some columns from rows. Rows that had values get a hole for each."""
    names = F.array(*(F.lit(schema.names[i]) for i in sorted({*indexes})))
    had_values = F.col("_op").isin("insert", "update", "read")
    held = F.coalesce(F.col("_holes"), F.array().cast("array<string>"))
    changed = {
        "_holes": F.when(had_values, null_if_empty(F.array_union(held, names))).otherwise(
            F.col("_holes")
        ),
        **{
            name: null_if_empty(F.map_filter(name, lambda key, _: ~F.array_contains(names, key)))
            for name in ("_raw", "_old")
        },
    }
    for i in {*indexes}:
        kind = rows.schema[schema.names[i]].dataType
        changed[schema.names[i]] = F.lit(None).cast(kind)
    return rows.select(
        *(
            changed.get(name, F.col(f"`{name}`")).alias(name, metadata=rows.schema[name].metadata)
            for name in rows.columns
        )
    )


def rename_old(rows: DataFrame, before: TableSchema, after: TableSchema) -> DataFrame:
    """Give the texts in `_old` the names that their columns have now."""
    renamed = {
        one: other for one, other in zip(before.names, after.names, strict=False) if one != other
    }
    if not renamed:
        return rows
    names = F.create_map(*(F.lit(word) for pair in renamed.items() for word in pair))
    old = F.transform_keys("_old", lambda name, _: F.coalesce(names[name], name))
    return rows.withColumn("_old", old)


def _place_values(
    schema: TableSchema, places: Sequence[int], forgotten: Mapping[int, Position]
) -> Expression:
    """The texts of an entry in the order of the schema; NULL if it has no values."""
    texts = [F.lit(None).cast("string")] * len(schema.columns)
    for sent, place in enumerate(places):
        text = F.col("values")[sent]
        texts[place] = F.when(_is_known(place, forgotten), text) if place in forgotten else text
    return F.when(F.col("values").isNotNull(), F.array(*texts))


def _place_unsent(places: Sequence[int], forgotten: Mapping[int, Position]) -> Expression:
    """The indexes in the schema of the columns that an entry with values lacks."""
    placed = F.array(*(F.lit(place) for place in places))
    unsent = F.transform(
        F.coalesce(F.col("unchanged"), F.array().cast("array<int>")), lambda i: placed[i]
    )
    gone = [F.when(~_is_known(i, forgotten), F.lit(i)) for i in sorted(forgotten)]
    if gone:
        unsent = F.array_union(unsent, F.array_compact(F.array(*gone)))
    return F.when(F.col("values").isNotNull(), unsent.cast("array<int>"))


def _name_old(
    schema: TableSchema,
    relation: Relation,
    places: Sequence[int],
    forgotten: Mapping[int, Position],
) -> Expression:
    """The texts of the old row that an entry has, by column name. Only sent columns are in it."""
    is_whole = relation.identity is ReplicaIdentity.FULL
    pairs: list[Expression] = []
    for sent, (column, place) in enumerate(zip(relation.columns, places, strict=True)):
        if is_whole or column.in_identity:
            name = F.lit(schema.names[place])
            is_known = _is_known(place, forgotten)
            pair = F.struct(name.alias("name"), F.col("old_values")[sent].alias("text"))
            pairs.append(F.when(is_known, pair) if place in forgotten else pair)
    if not pairs:
        return F.lit(None).cast(_TEXTS)
    found = F.map_from_entries(F.array_compact(F.array(*pairs)))
    return F.when(F.col("old_values").isNotNull(), null_if_empty(found))


def _is_known(place: int, forgotten: Mapping[int, Position]) -> Expression:
    """Whether a column has its value at the position of an entry."""
    if place not in forgotten:
        return F.lit(True)
    return F.struct(*POSITION) >= write_position(forgotten[place])
