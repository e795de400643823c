"""Computes checksums of a table's rows by ranges, and lists the keys of ranges, inside Spark.

The counterpart of `cdc_core/source/checksums.py`: both write the same text for equal rows. A row
with missing values never equals a row of the source, because these values are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.comparing import (
    HASH_DIGITS,
    UUID_DIGITS,
    CanonicalForm,
    Compared,
    Ordering,
    OrdinalRange,
    RangeSum,
)
from spark_jobs.fold.rows import map_columns
from spark_jobs.fold.steps import has_exact_key
from spark_jobs.pg_types.built_in import OIDS
from spark_jobs.pg_types.text_output import choose_form
from spark_jobs.schema.evolution import TableSchema

_INTEGERS = frozenset(OIDS[name] for name in ("int2", "int4", "int8"))
# No text of a type that keeps texts in `_raw` begins with this.
_DISAGREES = "_raw disagrees: "
_ORDINAL, _DIGEST, _HAS_HOLES = "ordinal", "digest", "has_holes"


@dataclass(frozen=True, slots=True)
class LakeKey:
    """A row of the lake: its ordinal, key texts and digest, and whether it has missing values."""

    ordinal: int
    key: tuple[str | None, ...]
    digest: str
    has_holes: bool


def find_schema(rows: DataFrame) -> TableSchema:
    """The table schema, from the columns of a table's rows."""
    return TableSchema.from_metadata([field.metadata for field in rows.schema.fields])


def choose_compared(
    schema: TableSchema, *, among: Sequence[str], hashed: frozenset[str]
) -> Compared:
    """Choose the columns to compare: those in `among`, by the source's names.

    A column in `hashed` is compared by presence only.
    """
    columns = zip(schema.columns, map_columns(schema), strict=True)
    return Compared(
        tuple(
            (
                column.name,
                CanonicalForm.PRESENCE
                if column.name in hashed
                else choose_form(mapping.spark_type),
            )
            for column, mapping in columns
            if column.name in among
        ),
        schema.key_names,
        _choose_ordering(schema),
    )


def sum_ranges(
    rows: DataFrame, schema: TableSchema, compared: Compared, part: OrdinalRange, width: int
) -> dict[int | None, RangeSum]:
    """Sum up the rows of a part in ranges of `width` ordinals; by range number."""
    first, second = (
        F.bit_xor(F.conv(F.substr(_DIGEST, F.lit(start), F.lit(16)), 16, -10).cast("long"))
        for start in (1, 17)
    )
    sums = (
        _hash_rows(rows, schema, compared, [part])
        .groupBy(F.expr(f"{_ORDINAL} div {width}L").alias("number"))
        .agg(
            F.count(F.lit(1)),
            first,
            second,
            F.min(_ORDINAL),
            F.max(_ORDINAL),
            F.count_if(_HAS_HOLES),
        )
        .collect()
    )
    return {row[0]: RangeSum(*row[1:]) for row in sums}


def list_keys(
    rows: DataFrame, schema: TableSchema, compared: Compared, parts: Sequence[OrdinalRange]
) -> list[LakeKey]:
    """Each row of some parts that has an ordinal."""
    found = _hash_rows(rows, schema, compared, parts).where(F.col(_ORDINAL).isNotNull())
    digest = F.substr(_DIGEST, F.lit(1), F.lit(32))
    listed = found.select(_ORDINAL, "key", digest, _HAS_HOLES).collect()
    return [LakeKey(row[0], tuple(row[1] or ()), row[2], row[3]) for row in listed]


def write_texts(schema: TableSchema) -> dict[str, Expression]:
    """Each column's value in its canonical form, by the source's name of the column.

    A text in `_raw` counts as this form only if it parses to the value in the typed column.
    """
    texts: dict[str, Expression] = {}
    for column, name, mapping in zip(
        schema.columns, schema.names, map_columns(schema), strict=True
    ):
        raw, value = F.try_element_at("_raw", F.lit(name)), F.col(f"`{name}`")
        if mapping.is_total:
            # The typed value is complete, so a text in `_raw` is a difference.
            agrees = F.lit(False)
        else:
            read = mapping.parse(raw).cast(mapping.spark_type)
            agrees = mapping.write(read).eqNullSafe(mapping.write(value))
        texts[column.name] = (
            F.when(raw.isNull(), mapping.write(value))
            .when(agrees, raw)
            .otherwise(F.concat(F.lit(_DISAGREES), raw))
        )
    return texts


def _choose_ordering(schema: TableSchema) -> Ordering:
    if len(schema.key) == 1:
        column, kind = schema.columns[schema.key[0]], schema.chosen[schema.key[0]]
        oid = column.base_oid or column.type_oid
        if kind is None and oid in _INTEGERS:
            return Ordering.INTEGER
        if kind is None and oid == OIDS["uuid"]:
            return Ordering.UUID
    return Ordering.HASH


def _hash_rows(
    rows: DataFrame, schema: TableSchema, compared: Compared, parts: Sequence[OrdinalRange]
) -> DataFrame:
    """Compute `ordinal, key, digest, has_holes` of each row; first each text, and only once."""
    texts = write_texts(schema)
    written = []
    for i, (name, form) in enumerate(compared.columns):
        text = texts[name]
        if form is CanonicalForm.PRESENCE:
            text = F.when(text.isNotNull(), "x")
        written.append(text.alias(f"c{i}"))
    numbers = {name: i for i, (name, _) in enumerate(compared.columns)}
    places = [numbers[name] for name in compared.key]
    key = F.array(*(texts[name] for name in compared.key))
    damage = F.lit("")
    if not has_exact_key(schema):
        key, agrees = _read_key(schema, texts)
        damage = F.when(agrees, "").otherwise(_DISAGREES)
    holes = F.coalesce(F.array_join("_holes", ","), F.lit(""))
    named = rows.select(
        *written,
        key.alias("key"),
        F.concat(holes, damage).alias("holes"),
        (F.size("_holes") > 0).alias(_HAS_HOLES),
    )
    placed = named.withColumn(_ORDINAL, _find_ordinal(compared, places))
    inside = placed.where(reduce(or_, map(_is_inside, parts)))
    text = F.concat_ws("", *_join_texts(range(len(written))), "holes")
    return inside.select(
        _ORDINAL,
        "key",
        F.sha2(text, 256).alias(_DIGEST),
        F.coalesce(_HAS_HOLES, F.lit(False)).alias(_HAS_HOLES),
    )


def _read_key(
    schema: TableSchema, texts: Mapping[str, Expression]
) -> tuple[Expression, Expression]:
    """The key in `_key`, NULL if the key columns hold another one; and whether they agree.

    A merge finds a row by `_key` alone. If `_key` holds another text, the table has the row twice
    after its next change. A float column does not hold a text, but the number that the text gives.
    """
    held = F.from_json("_key", T.ArrayType(T.StringType()))
    mappings = map_columns(schema)
    agrees = F.to_json(held) == F.col("_key")
    for number, i in enumerate(schema.key):
        text, held_text = texts[schema.columns[i].name], F.get(held, F.lit(number))
        mapping = mappings[i]
        if choose_form(mapping.spark_type) is not CanonicalForm.TEXT:
            read = mapping.parse(held_text).cast(mapping.spark_type)
            agrees &= text.eqNullSafe(held_text) | text.eqNullSafe(mapping.write(read))
        else:
            agrees &= text.eqNullSafe(held_text)
    agrees = F.coalesce(agrees, F.lit(False)) & (F.size(held) == len(schema.key))
    return F.when(agrees, held), agrees


def _find_ordinal(compared: Compared, places: Sequence[int]) -> Expression:
    """The ordinal of a row; NULL if its key is NULL, for example by damage."""
    match compared.ordering:
        case Ordering.INTEGER:
            return F.col(f"c{places[0]}").try_cast("long")
        case Ordering.UUID:
            digits, count = F.replace(F.col(f"c{places[0]}"), F.lit("-"), F.lit("")), UUID_DIGITS
        case Ordering.HASH:
            digits, count = F.sha2(F.concat_ws("", *_join_texts(places)), 256), HASH_DIGITS
    return F.conv(F.substr(digits, F.lit(1), F.lit(count)), 16, 10).try_cast("long")


def _join_texts(places: Sequence[int]) -> list[Expression]:
    """The length, a colon and the text of each column, for a concatenation that skips NULL."""
    pieces: list[Expression] = []
    for i in places:
        text = F.col(f"c{i}")
        pieces += [F.octet_length(text).cast("string"), F.lit(":"), text]
    return pieces


def _is_inside(part: OrdinalRange) -> Expression:
    ordinal = F.col(_ORDINAL)
    inside = F.lit(True)
    if part.low is not None:
        inside &= ordinal >= part.low
    if part.high is not None:
        return inside & (ordinal < part.high)
    return inside | ordinal.isNull()
