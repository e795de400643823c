"""Turns entries of the log into rows of a target of entries, each with its values as sent.

Shape: the columns of `fold/rows.py::table_fields`; then `_op`; `_old` (by column name, the texts of
the old row that the source sent); `_detail` (the log's `detail`, as JSON); `_end_lsn` (the end LSN
of the transaction). A row of a DELETE, a TRUNCATE, a sweep or an undecoded entry has no values.
`_holes` names the columns that an UPDATE did not send, and those whose values a rule has hidden. In
the Delta table, columns that were added later come last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Relation, ReplicaIdentity
from spark_jobs.append.evolution import EntrySchema
from spark_jobs.fold.rows import select_values, table_fields, type_values
from spark_jobs.log.reading import POSITION
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
    entries: DataFrame, schema: EntrySchema, relations: Mapping[int, Relation]
) -> DataFrame:
    """Make the rows of entries of one table; each position occurs once."""
    version = F.col("relation_version")
    values, lost, old = (F.lit(None).cast(kind) for kind in ("array<string>", "array<int>", _TEXTS))
    for number, relation in relations.items():
        if number not in schema.indexes:
            continue  # It comes at a later step.
        indexes, is_own = schema.indexes[number], version == number
        values = F.when(is_own, _order_values(schema.table, indexes)).otherwise(values)
        lost = F.when(is_own, _list_unsent(indexes)).otherwise(lost)
        old = F.when(is_own, _name_old(schema.table, relation, indexes)).otherwise(old)
    ordered = entries.select(
        *POSITION,
        *("committed_at", "op", "detail", "end_lsn"),
        values.alias("values"),
        lost.alias("lost"),
        old.alias("old"),
    )
    typed, columns = type_values(ordered, schema.table)
    own = {"_op": "op", "_old": "old", "_detail": "detail", "_end_lsn": "end_lsn"}
    others = {name: F.col(found) for name, found in own.items()}
    return typed.select(*columns, *select_values(others, _OWN_FIELDS))


def _order_values(schema: TableSchema, indexes: Sequence[int]) -> Expression:
    """The texts of an entry in the order of the schema; NULL if it has no values."""
    texts = [F.lit(None).cast("string")] * len(schema.columns)
    for sent, index in enumerate(indexes):
        texts[index] = F.col("values")[sent]
    return F.when(F.col("values").isNotNull(), F.array(*texts))


def _list_unsent(indexes: Sequence[int]) -> Expression:
    """The indexes in the schema of the columns that an UPDATE did not send."""
    own = F.array(*(F.lit(index) for index in indexes))
    unsent = F.coalesce(F.col("unchanged"), F.array().cast("array<int>"))
    return F.transform(unsent, lambda i: own[i]).cast("array<int>")


def _name_old(schema: TableSchema, relation: Relation, indexes: Sequence[int]) -> Expression:
    """The texts of the old row that an entry has, by column name. Only sent columns are in it."""
    is_whole = relation.identity is ReplicaIdentity.FULL
    pairs = [
        F.struct(F.lit(schema.names[index]).alias("name"), F.col("old_values")[sent].alias("text"))
        for sent, (column, index) in enumerate(zip(relation.columns, indexes, strict=True))
        if is_whole or column.in_identity
    ]
    if not pairs:
        return F.lit(None).cast(_TEXTS)
    return F.when(F.col("old_values").isNotNull(), F.map_from_entries(F.array(*pairs)))
