"""Turns folded texts into the rows of a table: typed values, raw values and missing values.

Shape: a table has the source's columns, typed. The lake's own columns follow: `_key` (the key's
texts, only if the typed key is not exact); `_epoch, _commit_lsn, _seq, _committed_at`; `_raw` (by
column, the texts that the typed value alone does not give back; NULL if none); `_holes` (the
columns whose value the source never sent; NULL if none). A table has these columns in every mode.
A mode may add columns after them (`spark_jobs/modes/mode.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_jobs.fold.steps import has_exact_key, id_names
from spark_jobs.pg_types.arrow_rows import ArrowColumn, Columns
from spark_jobs.pg_types.types import TypeMapping, map_type
from spark_jobs.schema.evolution import TableSchema

_EPOCH = "_epoch"
# The position of a row's newest change, and when the source committed it.
META_NAMES = (_EPOCH, "_commit_lsn", "_seq", "_committed_at")
_META_FIELDS = (
    T.StructField("_commit_lsn", T.LongType()),
    T.StructField("_seq", T.LongType()),
    T.StructField("_committed_at", T.TimestampType()),
    T.StructField("_raw", T.MapType(T.StringType(), T.StringType())),
    T.StructField("_holes", T.ArrayType(T.StringType())),
)


def table_fields(schema: TableSchema) -> list[T.StructField]:
    """The columns of a table in every mode, with the metadata that hold the table schema."""
    columns = [
        T.StructField(name, mapping.spark_type, True, schema.describe_column(i))
        for i, (name, mapping) in enumerate(zip(schema.names, map_columns(schema), strict=True))
    ]
    key = [] if has_exact_key(schema) else [T.StructField("_key", T.StringType())]
    epoch = T.StructField(_EPOCH, T.IntegerType(), True, schema.describe_table())
    return [*columns, *key, epoch, *_META_FIELDS]


def map_columns(schema: TableSchema) -> list[TypeMapping]:
    """The type mapping of each column; if the settings chose a type, the mapping to that type."""
    return [
        map_type(column, kind) for column, kind in zip(schema.columns, schema.chosen, strict=True)
    ]


def find_converts(schema: TableSchema) -> Columns | None:
    """The conversions by which Arrow reads the columns; None if Arrow cannot read all of them.

    Also None if the key is not exact, or if the settings chose a type for a key column.
    """
    if not has_exact_key(schema) or any(schema.chosen[i] is not None for i in schema.key):
        return None
    columns: list[ArrowColumn] = []
    for name, mapping in zip(schema.names, map_columns(schema), strict=True):
        if mapping.convert is None:
            return None
        columns.append(ArrowColumn(name, mapping.convert, mapping.kept_form))
    return columns


def match_names(schema: TableSchema) -> list[str]:
    """The columns of a table that identify a row, in the order of the ids."""
    return [schema.names[i] for i in schema.key] if has_exact_key(schema) else ["_key"]


def match_keys(schema: TableSchema) -> list[Expression]:
    """The conditions that a row of the table, alias `t`, has the ids of another row, alias `s`."""
    return [
        F.col(f"t.`{name}`") == F.col(f"s.{id_name}")
        for name, id_name in zip(match_names(schema), id_names(schema), strict=True)
    ]


def type_rows(folded: DataFrame, schema: TableSchema) -> DataFrame:
    """Give folded rows the columns of the table.

    `carried`, `lost` and `unclear` are optional if the rows needed no fold.
    Shape: the ids, `_present`, the table's columns, `_carried` (names of columns whose value is
    that of the target's row), `_unclear`, and `_root` if `folded` has a `root`.
    """
    typed, columns = type_values(folded, schema)
    is_folded, names = "unclear" in folded.columns, schema.names
    return typed.select(
        *id_names(schema),
        F.col("present").alias("_present"),
        # With their metadata: a MERGE adds a new column to the table as it is here.
        *columns,
        (name_columns(F.col("carried"), names) if is_folded else _no_names()).alias("_carried"),
        (F.col("unclear") if is_folded else F.lit(False)).alias("_unclear"),
        *(F.col(name).alias(f"_{name}") for name in folded.columns if name == "root"),
    )


def type_values(folded: DataFrame, schema: TableSchema) -> tuple[DataFrame, list[Expression]]:
    """Type the texts in `values`; return the rows, and the columns of the table as their values.

    The rows have all columns of `folded`. `lost` has the indexes of missing values; it is optional.
    """
    names, types = schema.names, map_columns(schema)
    typed = folded.withColumns(
        {f"_v{i}": mapping.parse(F.col("values")[i]) for i, mapping in enumerate(types)}
    )
    raw = _gather_raw(
        (names[i], mapping, F.col("values")[i], F.col(f"_v{i}"))
        for i, mapping in enumerate(types)
        if not mapping.is_total
    )
    key = {} if has_exact_key(schema) else {"_key": F.col(id_names(schema)[0])}
    meta = {
        _EPOCH: F.col("epoch"),
        "_commit_lsn": F.col("commit_lsn"),
        "_seq": F.col("seq"),
        "_committed_at": F.col("committed_at"),
        "_raw": raw,
        "_holes": null_if_empty(
            name_columns(F.col("lost"), names) if "lost" in folded.columns else _no_names()
        ),
    }
    columns = {name: F.col(f"_v{i}") for i, name in enumerate(names)}
    return typed, select_values(columns | key | meta, table_fields(schema))


def identify_rows(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Give rows that have a table's columns the form that `type_rows` gives to unfolded rows."""
    fields = table_fields(schema)
    own = {field.name: F.col(f"`{field.name}`") for field in fields}
    ids = zip(match_names(schema), id_names(schema), strict=True)
    return rows.select(
        *(own[name].alias(id_name) for name, id_name in ids),
        F.lit(True).alias("_present"),
        *select_values(own, fields),
        _no_names().alias("_carried"),
        F.lit(False).alias("_unclear"),
    )


def carry(
    schema: TableSchema, carried: frozenset[int], source: str, target: str
) -> dict[str, Expression]:
    """By column name, the values of a `source` row that replaces a `target` row.

    `source` and `target` are aliases. A row may take only the columns in `carried` from its target.
    """
    row, old = _qualify(source), _qualify(target)
    values: dict[str, Expression] = {}
    for i, name in enumerate(schema.names):
        taken = F.array_contains(row("_carried"), name)
        values[name] = F.when(taken, old(name)).otherwise(row(name)) if i in carried else row(name)
    key = () if has_exact_key(schema) else ("_key",)
    values |= {name: row(name) for name in (*key, *META_NAMES)}
    raw, holes = row("_raw"), row("_holes")
    if carried:
        still_raw = F.map_filter(
            F.coalesce(old("_raw"), _no_raw()),
            lambda name, _: F.array_contains(row("_carried"), name),
        )
        raw = null_if_empty(F.map_concat(F.coalesce(raw, _no_raw()), still_raw))
        still_lost = F.array_intersect(F.coalesce(old("_holes"), _no_names()), row("_carried"))
        holes = null_if_empty(F.array_union(F.coalesce(holes, _no_names()), still_lost))
    return values | {"_raw": raw, "_holes": holes}


def insert(schema: TableSchema, carried: frozenset[int], source: str) -> dict[str, Expression]:
    """By column name, the values of a `source` row whose key has no row in the target."""
    row = _qualify(source)
    values = {field.name: row(field.name) for field in table_fields(schema)}
    if carried:
        holes = F.array_union(F.coalesce(row("_holes"), _no_names()), row("_carried"))
        values["_holes"] = null_if_empty(holes)
    return values


def widen(target: DataFrame, schema: TableSchema) -> DataFrame:
    """Add a table schema's new columns to a target's rows, with the values that old rows have."""
    known = set(target.columns)
    raws: list[tuple[str, TypeMapping, Expression, Expression]] = []
    younger: dict[str, Expression] = {}
    columns = zip(schema.names, schema.columns, map_columns(schema), strict=True)
    for name, column, mapping in columns:
        if name in known:
            continue
        text = F.lit(column.missing_value).cast("string")
        younger[name] = mapping.parse(text).cast(mapping.spark_type)
        if column.missing_value is not None and not mapping.is_total:
            raws.append((name, mapping, text, younger[name]))
    widened = target.withColumns(younger) if younger else target
    if not raws:
        return widened
    misfits = F.coalesce(_gather_raw(raws), _no_raw())
    raw = F.map_concat(F.coalesce(F.col("_raw"), _no_raw()), misfits)
    return widened.withColumn("_raw", null_if_empty(raw))


def name_lossy(schema: TableSchema) -> Expression:
    """The names of the columns that are NULL in a row and have a text in `_raw`."""
    unfilled = [
        F.when(F.col(f"`{name}`").isNull(), F.lit(name))
        for name, mapping in zip(schema.names, map_columns(schema), strict=True)
        if not mapping.is_total
    ]
    if not unfilled:
        return F.lit(None).cast("array<string>")
    return F.array_intersect(F.map_keys("_raw"), F.array_compact(F.array(*unfilled)))


def select_values(
    values: dict[str, Expression], fields: Iterable[T.StructField]
) -> list[Expression]:
    """Columns of a table in their order, with their metadata."""
    return [values[field.name].alias(field.name, metadata=field.metadata) for field in fields]


def null_if_empty(collection: Expression) -> Expression:
    """A collection, or NULL if it is empty."""
    return F.when(F.size(collection) > 0, collection)


def _gather_raw(
    columns: Iterable[tuple[str, TypeMapping, Expression, Expression]],
) -> Expression:
    """The texts that a row must keep beside its values, by column; NULL if it must keep none.

    `columns` has the name, mapping, text and value of each column. Few rows keep a text, so only
    those get a map. Spark can compile all expressions here. One that it could not compile would
    stop it from compiling the whole projection.
    """
    is_any, maps = F.lit(False), [_no_raw()]
    for name, mapping, text, value in columns:
        is_raw = mapping.is_raw(text, value)
        is_any |= is_raw
        maps.append(F.when(is_raw, F.create_map(F.lit(name), text)).otherwise(_no_raw()))
    return F.when(is_any, F.map_concat(*maps))


def _qualify(alias: str) -> Callable[[str], Expression]:
    return lambda name: F.col(f"{alias}.`{name}`")


def name_columns(indexes: Expression, names: tuple[str, ...]) -> Expression:
    """The names of columns, from an array of their indexes."""
    listed = F.array(*(F.lit(name) for name in names)).cast("array<string>")
    return F.transform(indexes, lambda i: listed[i])


def _no_raw() -> Expression:
    return F.create_map().cast("map<string,string>")


def _no_names() -> Expression:
    return F.array().cast("array<string>")
