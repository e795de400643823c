"""Gives rows of a table another table schema, when a table is built again in a new shape.

Only rows that the source no longer has need this: a whole backfill reads all others again. A value
of a column whose type changed goes through its text, as the source would have sent it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Column
from spark_jobs.fold.rows import map_columns, null_if_empty, select_values, table_fields
from spark_jobs.fold.steps import has_exact_key
from spark_jobs.pg_types.types import TypeMapping
from spark_jobs.schema.evolution import TableSchema

_EXACT_NUMBERS = (T.ShortType, T.IntegerType, T.LongType, T.DecimalType)
# Wide enough to compare two numbers. A longer fraction would be rounded.
_WIDE = T.DecimalType(38, 18)
_NUMBER_FORM = r"\A-?[0-9]+(\.[0-9]{0,18}0*)?\z"


def reshape_rows(rows: DataFrame, old: TableSchema, new: TableSchema) -> DataFrame | None:
    """Rows of a table schema in another one; None if the key has other columns, or other hashes.

    A column has the values of the old column with its attnum; if the source's table is another one,
    with its name. An old column that is no more is left out.
    """
    matches = [match_column(column, old, new) for column in new.columns]
    keys = [(new.columns[i], matches[i]) for i in new.key]
    if {j for _, j in keys} != {*old.key}:
        return None
    if any(c.hashed_by != old.columns[j].hashed_by for c, j in keys if j is not None):
        return None
    return reshape_columns(rows, old, new, matches)


def reshape_columns(
    rows: DataFrame, old: TableSchema, new: TableSchema, matches: Sequence[int | None]
) -> DataFrame:
    """Rows of a table schema in another one.

    `matches` has, for each new column, the index of the old column that it continues; None if it is
    new. Columns that are in neither schema, such as those of a mode, stay as they are.
    """
    pairs = list(zip(new.columns, new.chosen, matches, strict=True))
    is_same = _compare_columns(old, new, matches)
    mappings = map_columns(new)
    texts: list[Expression] = []
    values: dict[str, Expression] = {}
    unknown: list[str] = []
    for i, (name, (column, _, j), mapping) in enumerate(
        zip(new.names, pairs, mappings, strict=True)
    ):
        if j is None:
            text = F.lit(column.missing_value).cast("string")
            value = mapping.parse(text)
        elif is_same[i]:
            text, value = _find_raw(old.names[j]), F.col(f"`{old.names[j]}`")
        elif column.hashed_by != old.columns[j].hashed_by:
            # Older values are not as a rule of the settings now asks for them.
            text, value = F.lit(None).cast("string"), F.lit(None)
            unknown.append(name)
        else:
            text = _find_text(old, j)
            value = _convert(text, map_columns(old)[j], mapping)
        values[name] = value.cast(mapping.spark_type)
        is_kept = text.isNotNull() if is_same[i] else _is_raw(mapping, text, values[name])
        texts.append(F.when(is_kept, text))
    names = F.array(*(F.lit(name) for name in new.names))
    raw = F.map_filter(F.map_from_arrays(names, F.array(*texts)), lambda _, text: text.isNotNull())
    values |= {"_raw": null_if_empty(raw), "_holes": _rename_holes(old, new, matches, unknown)}
    if not has_exact_key(new):
        values["_key"] = _make_key(values, old, new, matches)
    fields = table_fields(new)
    kept = {field.name: F.col(field.name) for field in fields if field.name not in values}
    own = {field.name for field in table_fields(old)}
    others = [F.col(f"`{name}`") for name in rows.columns if name not in own]
    return rows.select(*select_values(values | kept, fields), *others)


def match_column(column: Column, old: TableSchema, new: TableSchema) -> int | None:
    """The index of the old column that a new column follows; None if it is new."""
    if old.oid == new.oid and column.attnum is not None:
        for j, known in enumerate(old.columns):
            if known.attnum == column.attnum:
                return j
        # A column whose attnum is not known was announced when the catalog no longer showed it.
        heirs = [j for j, known in enumerate(old.columns) if known.attnum is None]
    else:
        heirs = [*range(len(old.columns))]
    return next((j for j in heirs if old.columns[j].name == column.name), None)


def _compare_columns(
    old: TableSchema, new: TableSchema, matches: Sequence[int | None]
) -> list[bool]:
    """Whether the values of each new column are stored as those of the old one."""
    pairs = zip(new.columns, new.chosen, matches, strict=True)
    return [j is not None and _is_same(column, kind, old, j) for column, kind, j in pairs]


def _is_same(column: Column, kind: str | None, old: TableSchema, j: int) -> bool:
    """Whether the values of a column are stored as those of an old one."""

    def describe(one: Column, chosen: str | None) -> tuple[object, ...]:
        base = (one.base_oid, one.base_modifier)
        return one.type_oid, one.type_modifier, *base, one.hashed_by, chosen

    return describe(column, kind) == describe(old.columns[j], old.chosen[j])


def _is_raw(mapping: TypeMapping, text: Expression, value: Expression) -> Expression:
    if mapping.is_total:
        return F.lit(False)
    return F.coalesce(mapping.is_raw(text, value), F.lit(False))


def _find_raw(name: str) -> Expression:
    return F.try_element_at(F.col("_raw"), F.lit(name))


def _find_text(schema: TableSchema, index: int) -> Expression:
    """The text of a column's value."""
    mapping, name = map_columns(schema)[index], schema.names[index]
    return F.coalesce(_find_raw(name), mapping.text(F.col(f"`{name}`")))


def _convert(text: Expression, old: TypeMapping, new: TypeMapping) -> Expression:
    """The value of a text in another type; NULL if the type does not certainly hold it."""
    value = new.parse(text)
    if not (_is_number(old.spark_type) and isinstance(new.spark_type, _EXACT_NUMBERS)):
        return value
    # PostgreSQL writes a number of another type with more or fewer zeros at its end.
    wide = F.when(text.rlike(_NUMBER_FORM), text.try_cast(_WIDE))
    number = wide.try_cast(new.spark_type)
    return F.coalesce(value, F.when(number.try_cast(_WIDE) == wide, number))


def _is_number(kind: T.DataType) -> bool:
    return isinstance(kind, (*_EXACT_NUMBERS, T.FloatType, T.DoubleType))


def _make_key(
    values: dict[str, Expression], old: TableSchema, new: TableSchema, matches: Sequence[int | None]
) -> Expression:
    """The texts of the key, as the source sends them now."""
    is_same = _compare_columns(old, new, matches)
    keys = [(i, matches[i]) for i in new.key]
    if [j for _, j in keys] == [*old.key] and all(is_same[i] for i, _ in keys):
        return F.col("_key")
    texts: list[Expression] = []
    for i, j in keys:
        if j is None or new.columns[i].hashed_by != old.columns[j].hashed_by:
            texts.append(F.lit(None).cast("string"))
            continue
        mapping, value, text = map_columns(new)[i], values[new.names[i]], _find_text(old, j)
        is_whole = value.isNotNull() & ~_is_raw(mapping, text, value)
        texts.append(F.when(is_whole, mapping.text(value)).otherwise(text))
    return F.to_json(F.array(*texts))


def _rename_holes(
    old: TableSchema, new: TableSchema, matches: Sequence[int | None], unknown: list[str]
) -> Expression:
    followed = zip(new.names, matches, strict=True)
    pairs = [(old.names[j], name) for name, j in followed if j is not None]
    known = F.create_map(*(F.lit(word) for pair in pairs for word in pair))
    held = F.transform(F.coalesce(F.col("_holes"), _no_names()), lambda name: known[name])
    added = F.array(*(F.lit(name) for name in unknown)) if unknown else _no_names()
    return null_if_empty(F.array_union(F.array_compact(held), added))


def _no_names() -> Expression:
    return F.array().cast("array<string>")
