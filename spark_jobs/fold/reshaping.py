"""Gives rows of a table another table schema, when a table is built again in a new shape.

Only rows that the source no longer has need this: a whole backfill reads all others again. A value
of a column whose type changed goes through its text, as the source would have sent it.
"""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Column
from spark_jobs.fold.rows import map_columns, null_if_empty, select_values, table_fields
from spark_jobs.pg_types.types import TypeMapping
from spark_jobs.schema.evolution import TableSchema


def reshape_rows(rows: DataFrame, old: TableSchema, new: TableSchema) -> DataFrame | None:
    """Rows of a table schema in another one; None if the key is another one.

    A column has the values of the old column with its attnum; if the source's table is another one,
    with its name. An old column that is no more is left out. Columns that are in neither schema,
    such as those of a mode, stay as they are.
    """
    matches = [_match(column, old, new) for column in new.columns]
    pairs = list(zip(new.columns, new.chosen, matches, strict=True))
    is_same = [j is not None and _is_same(column, kind, old, j) for column, kind, j in pairs]
    keys = [matches[i] for i in new.key]
    if keys != list(old.key) or not all(is_same[i] for i in new.key):
        return None
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
            text = F.coalesce(_find_raw(old.names[j]), _write_text(old, j))
            value = mapping.parse(text)
        values[name] = value.cast(mapping.spark_type)
        is_kept = text.isNotNull() if is_same[i] else _is_raw(mapping, text, values[name])
        texts.append(F.when(is_kept, text))
    names = F.array(*(F.lit(name) for name in new.names))
    raw = F.map_filter(F.map_from_arrays(names, F.array(*texts)), lambda _, text: text.isNotNull())
    values |= {"_raw": null_if_empty(raw), "_holes": _rename_holes(old, new, matches, unknown)}
    fields = table_fields(new)
    kept = {field.name: F.col(field.name) for field in fields if field.name not in values}
    own = {field.name for field in table_fields(old)}
    others = [F.col(f"`{name}`") for name in rows.columns if name not in own]
    return rows.select(*select_values(values | kept, fields), *others)


def _match(column: Column, old: TableSchema, new: TableSchema) -> int | None:
    """The index of the old column that a new column follows; None if it is new."""
    if old.oid == new.oid and column.attnum is not None:
        heirs = [j for j, known in enumerate(old.columns) if known.attnum == column.attnum]
    else:
        heirs = [j for j, known in enumerate(old.columns) if known.name == column.name]
    return heirs[0] if heirs else None


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


def _write_text(schema: TableSchema, index: int) -> Expression:
    """The text of a value. PostgreSQL writes a float with a small e, and none with `.0`."""
    mapping, value = map_columns(schema)[index], F.col(f"`{schema.names[index]}`")
    if isinstance(mapping.spark_type, (T.FloatType, T.DoubleType)):
        short = F.regexp_replace(value.cast("string"), r"\.0(?=E|\z)", "")
        return F.regexp_replace(short, "E", "e")
    return mapping.write(value)


def _rename_holes(
    old: TableSchema, new: TableSchema, matches: list[int | None], unknown: list[str]
) -> Expression:
    followed = zip(new.names, matches, strict=True)
    pairs = [(old.names[j], name) for name, j in followed if j is not None]
    known = F.create_map(*(F.lit(word) for pair in pairs for word in pair))
    held = F.transform(F.coalesce(F.col("_holes"), _no_names()), lambda name: known[name])
    added = F.array(*(F.lit(name) for name in unknown)) if unknown else _no_names()
    return null_if_empty(F.array_union(F.array_compact(held), added))


def _no_names() -> Expression:
    return F.array().cast("array<string>")
