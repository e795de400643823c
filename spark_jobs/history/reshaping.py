"""Gives the versions of a history another table schema, when a backfill ends a halt.

No version is lost, and none of its values: a dropped column stays, and a value whose type changed
is converted through its text. Only values that a rule of the settings hides are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Column, Relation, encode_column
from spark_jobs.delta.direct_parquet import read_fields
from spark_jobs.fold.plan import read_schema
from spark_jobs.fold.reshaping import match_column, reshape_columns
from spark_jobs.fold.rows import map_columns, null_if_empty, select_values
from spark_jobs.history.versions import is_open, list_fields
from spark_jobs.schema.evolution import TableSchema

# In the metadata of a column that the source's table no longer has: its name in the source.
_DROPPED_KEY = "walgate.dropped"
_TEXTS, _NAMES = "map<string,string>", "array<string>"
_TEMPORARY = "_dropped"


@dataclass(frozen=True, slots=True)
class HistoryShape:
    """The table schema of a history, and its columns that the source has dropped."""

    schema: TableSchema
    dropped: tuple[T.StructField, ...] = ()

    @classmethod
    def of(cls, table: DeltaTable) -> HistoryShape:
        """The columns of an open history."""
        return cls(read_schema(table), read_dropped(table))

    @property
    def fields(self) -> list[T.StructField]:
        """The columns of the history."""
        return [*list_fields(self.schema), *self.dropped]


def read_dropped(table: DeltaTable) -> tuple[T.StructField, ...]:
    """The columns of a history that the source has dropped."""
    return tuple(field for field in read_fields(table) if _DROPPED_KEY in field.metadata)


def has_same_keys(old: TableSchema, new: TableSchema) -> bool:
    """Whether a row has the same key under two table schemas."""
    matches = [match_column(new.columns[i], old, new) for i in new.key]
    if {*matches} != {*old.key}:
        return False
    pairs = zip(new.key, matches, strict=True)
    return all(
        j is not None and new.columns[i].hashed_by == old.columns[j].hashed_by for i, j in pairs
    )


def reshape_versions(
    versions: DataFrame, old: HistoryShape, new: TableSchema, relations: Iterable[Relation] = ()
) -> tuple[DataFrame, HistoryShape]:
    """The versions of a history in another table schema, with the columns that it then has.

    `relations` are the announcements that may say which columns a rule hides.
    A new column is NULL in closed versions, and has its missing value in open ones.
    """
    matches = [match_column(column, old.schema, new) for column in new.columns]
    hidden = _list_hidden(old.schema, new, matches, relations)
    gone = _list_dropped(old, new, matches, hidden)
    held = versions.withColumns(
        {
            **{f"{_TEMPORARY}{n}": F.col(f"`{one.stored}`") for n, one in enumerate(gone)},
            f"{_TEMPORARY}_raw": _take_texts(gone),
            f"{_TEMPORARY}_holes": _take_holes(gone),
        }
    ).drop(*(field.name for field in old.dropped))
    reshaped = reshape_columns(held, old.schema, new, matches)
    values = {field.name: F.col(f"`{field.name}`") for field in list_fields(new)}
    values |= {one.name: F.col(f"{_TEMPORARY}{n}") for n, one in enumerate(gone)}
    added = [new.names[i] for i, j in enumerate(matches) if j is None]
    values |= {name: F.when(is_open(), values[name]) for name in added}
    listed = F.array(*(F.lit(name) for name in added)).cast(_NAMES)
    raw = F.map_filter(
        F.coalesce("_raw", F.create_map().cast(_TEXTS)),
        lambda name, _: is_open() | ~F.array_contains(listed, name),
    )
    values["_raw"] = null_if_empty(F.map_concat(raw, F.col(f"{_TEMPORARY}_raw")))
    holes = F.coalesce("_holes", F.array().cast(_NAMES))
    values["_holes"] = null_if_empty(F.array_union(holes, F.col(f"{_TEMPORARY}_holes")))
    if _hides_values(old.schema, new, matches):
        # A hole that a rule has made is no value that the version before it had, too.
        values["_continues"] = F.lit(False)
    shape = HistoryShape(new, tuple(one.field for one in gone))
    return reshaped.select(*select_values(values, shape.fields)), shape


def _hides_values(old: TableSchema, new: TableSchema, matches: Sequence[int | None]) -> bool:
    """Whether some values are not as a rule of the settings asks for them now."""
    pairs = zip(new.columns, matches, strict=True)
    return any(j is not None and c.hashed_by != old.columns[j].hashed_by for c, j in pairs)


@dataclass(frozen=True, slots=True)
class _Dropped:
    """A dropped column: its name in the source, and its names in the history before and now."""

    source: str
    stored: str
    name: str
    kind: T.DataType

    @property
    def field(self) -> T.StructField:
        """The column that the history has then."""
        return T.StructField(self.name, self.kind, True, {_DROPPED_KEY: self.source})


def _list_dropped(
    old: HistoryShape, new: TableSchema, matches: Sequence[int | None], hidden: Collection[int]
) -> list[_Dropped]:
    """The dropped columns, before and now. If a name is taken, a number comes after it."""
    known = [(str(one.metadata[_DROPPED_KEY]), one.name, one.dataType) for one in old.dropped]
    columns = zip(old.schema.columns, old.schema.names, map_columns(old.schema), strict=True)
    known += [
        (column.name, name, mapping.spark_type)
        for j, (column, name, mapping) in enumerate(columns)
        if j not in matches and j not in hidden
    ]
    taken = {name.lower() for name in new.names}
    listed: list[_Dropped] = []
    for source, stored, kind in known:
        name, number = encode_column(source), 1
        while name.lower() in taken:
            number += 1
            name = encode_column(f"{source} ({number})")
        taken.add(name.lower())
        listed.append(_Dropped(source, stored, name, kind))
    return listed


def _list_hidden(
    old: TableSchema,
    new: TableSchema,
    matches: Sequence[int | None],
    relations: Iterable[Relation],
) -> set[int]:
    """The columns that are no longer sent and whose values a rule may hide: it excludes or hashes.

    A column of versions was not excluded when they were written. So it counts if a rule excludes it
    now, or if any announcement says that it is hashed. If nothing shows which columns a rule
    excludes, all that are no longer sent count.
    """
    lost = {j for j in range(len(old.columns)) if j not in matches}
    excluded = {*new.left_out}
    hashed = {
        column.attnum
        for relation in relations
        if relation.oid == old.oid
        for column in relation.columns
        if column.hashed_by is not None
    }
    # 0 means a column whose attnum is not known.
    if 0 in excluded or (excluded and old.oid != new.oid):
        return lost

    def is_hidden(column: Column) -> bool:
        if column.attnum is None:
            return bool(excluded or hashed)
        is_hashed = column.hashed_by is None and column.attnum in hashed
        return is_hashed or column.attnum in excluded

    return {j for j in lost if is_hidden(old.columns[j])}


def _take_texts(gone: Sequence[_Dropped]) -> Expression:
    """The texts in `_raw` of columns that are dropped, under their new names."""
    none = F.create_map().cast(_TEXTS)
    if not gone:
        return none
    known = _map_names(gone)
    own = F.map_filter("_raw", lambda name, _: known[name].isNotNull())
    return F.coalesce(F.transform_keys(own, lambda name, _: known[name]), none)


def _take_holes(gone: Sequence[_Dropped]) -> Expression:
    """The names in `_holes` of columns that are dropped: their new names."""
    none = F.array().cast(_NAMES)
    if not gone:
        return none
    known = _map_names(gone)
    return F.coalesce(F.array_compact(F.transform("_holes", lambda name: known[name])), none)


def _map_names(gone: Sequence[_Dropped]) -> Expression:
    return F.create_map(*(F.lit(word) for one in gone for word in (one.stored, one.name)))
