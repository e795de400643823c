"""Turns one table's changes into steps.

A step is what a change does to one key: a departure (a row with the key goes), an arrival (a row
comes), or a renewal (a row comes in the place of another). A change that moves a row from one key
to another is two steps at one position. Texts are in the order of the table schema's columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Operation, Relation, ReplicaIdentity
from spark_jobs.log.reading import POSITION
from spark_jobs.pg_types.types import map_type
from spark_jobs.schema.evolution import TableSchema

DEPARTURE, ARRIVAL, RENEWAL = 0, 1, 2
# An optional column of steps: how many TRUNCATEs of the log range come before the step.
TRUNCATES = "_truncates"


def id_names(schema: TableSchema) -> list[str]:
    """The columns of a step that identify its row."""
    return [f"_id{i}" for i in range(len(schema.key) if has_exact_key(schema) else 1)]


def has_exact_key(schema: TableSchema) -> bool:
    """Whether different texts of a key always have different typed values.

    If so, the typed values identify a row; if not, its key's texts do.
    """
    return all(map_type(schema.columns[i]).is_exact for i in schema.key)


def identify(schema: TableSchema, texts: Expression) -> list[Expression]:
    """Return the ids of a row from its texts: the typed key if it is exact, else the key texts."""
    keys = [texts[i] for i in schema.key]
    if has_exact_key(schema):
        return [
            map_type(schema.columns[i]).parse(key) for i, key in zip(schema.key, keys, strict=True)
        ]
    return [F.to_json(F.array(*keys))]


def take_steps(
    entries: DataFrame,
    schema: TableSchema,
    relations: Mapping[int, Relation],
    *,
    has_moves: bool,
    also: Sequence[str] = (),
) -> DataFrame:
    """Turn one table's row changes into steps.

    If `has_moves` is false, no change may move a row to another key. `also` names columns of the
    entries that the steps have, too.
    Shape: `epoch, commit_lsn, seq, committed_at, kind`, the ids, `_from` (the ids that a moved row
    came from, else NULL), `values` (the texts of the row that comes), `unchanged` (the indexes of
    columns that were not sent), `old` (the whole row that departs, if the source sent it).
    """
    full = [v for v, r in relations.items() if r.identity is ReplicaIdentity.FULL]
    entries = entries.select(
        *POSITION,
        "committed_at",
        "op",
        *(name for name in also if name != "op"),
        F.col("relation_version").isin(*full).alias("_full")
        if full
        else F.lit(False).alias("_full"),
        _align_values("values", schema, relations).alias("values"),
        "unchanged",
        _align_values("old_values", schema, relations).alias("old"),
    )
    if full:
        entries = entries.withColumns(_resolve_from_old_row())
    ids = identify(schema, F.col("values"))
    old_ids = identify(schema, F.col("old"))
    names = id_names(schema)
    no_origin = F.lit(None).cast(_id_type(schema))
    image = F.when(F.col("_full"), F.col("old"))
    departs = F.struct(
        F.lit(DEPARTURE).alias("kind"),
        _pack(old_ids, names).alias("_id"),
        no_origin.alias("_from"),
        F.lit(None).cast("array<string>").alias("values"),
        F.lit(None).cast("array<int>").alias("unchanged"),
        image.alias("old"),
    )
    is_insert = F.col("op") == Operation.INSERT.value
    arrives = F.struct(
        F.when(is_insert, ARRIVAL).otherwise(RENEWAL).alias("kind"),
        _pack(ids, names).alias("_id"),
        no_origin.alias("_from"),
        F.col("values").alias("values"),
        F.col("unchanged").alias("unchanged"),
        image.alias("old"),
    )
    step = F.when(F.col("op") == Operation.DELETE.value, departs).otherwise(arrives)
    if has_moves:
        moves_in = F.struct(
            F.lit(ARRIVAL).alias("kind"),
            _pack(ids, names).alias("_id"),
            _pack(old_ids, names).alias("_from"),
            F.col("values").alias("values"),
            F.col("unchanged").alias("unchanged"),
            F.lit(None).cast("array<string>").alias("old"),
        )
        moves = (
            (F.col("op") == Operation.UPDATE.value)
            & F.col("old").isNotNull()
            & (_pack(ids, names) != _pack(old_ids, names))
        )
        step = F.explode(F.when(moves, F.array(departs, moves_in)).otherwise(F.array(step)))
    steps = entries.select(*POSITION, "committed_at", *also, step.alias("step"))
    return steps.select(
        *POSITION,
        "committed_at",
        *also,
        "step.kind",
        *(F.col("step._id")[name].alias(name) for name in names),
        "step._from",
        "step.values",
        "step.unchanged",
        "step.old",
    )


def _id_type(schema: TableSchema) -> T.StructType:
    kinds = [map_type(schema.columns[i]).spark_type for i in schema.key]
    if not has_exact_key(schema):
        kinds = [T.StringType()]
    return T.StructType(
        [T.StructField(name, kind) for name, kind in zip(id_names(schema), kinds, strict=True)]
    )


def _pack(ids: list[Expression], names: list[str]) -> Expression:
    return F.struct(*(value.alias(name) for value, name in zip(ids, names, strict=True)))


def _align_values(name: str, schema: TableSchema, relations: Mapping[int, Relation]) -> Expression:
    """Return texts in the order of the table schema.

    A column that is newer than the change gets the value that rows older than the column have.
    """
    aligned = F.col(name)
    for version, relation in relations.items():
        known = len(relation.columns)
        # Columns are in the order of attnum, and each new column has a higher attnum.
        assert schema.names[:known] == TableSchema.of(relation).names
        younger = [F.lit(column.missing_value).cast("string") for column in schema.columns[known:]]
        if younger:
            padded = F.concat(F.col(name), F.array(*younger))
            aligned = F.when(F.col("relation_version") == version, padded).otherwise(aligned)
    return aligned


def _resolve_from_old_row() -> dict[str, Expression]:
    """Take values that were not sent from the old row, which replica identity full sends whole."""
    sent_whole = F.col("_full") & F.col("old").isNotNull() & (F.size("unchanged") > 0)
    whole = F.transform(
        F.col("values"),
        lambda value, i: F.when(F.array_contains(F.col("unchanged"), i), F.col("old")[i]).otherwise(
            value
        ),
    )
    return {
        "values": F.when(sent_whole, whole).otherwise(F.col("values")),
        "unchanged": F.when(~F.coalesce(sent_whole, F.lit(False)), F.col("unchanged")),
    }
