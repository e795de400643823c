"""Decides the columns of a target of entries: every column that its source's table ever had.

Its rows stay as they were sent, so hardly any change of the source's table stops it. A renamed
column is found by its attnum, and a dropped one stays. If a type changes, older values go through
their texts. Values that a rule of the settings now keeps from the lake do not stay. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cdc_core.vocabulary import Column, Relation, encode_name
from spark_jobs.schema.evolution import Choose, Halt, TableSchema, check_columns


@dataclass(frozen=True, slots=True)
class EntryShape:
    """The columns of a target of entries, and where the values of relations belong.

    `schema` has all columns, and no key. `places` has, for each relation version, the index in the
    schema of each of its columns. `forgotten` lists the indexes of columns that lost their older
    values, once for each time: because of a rule of the settings, those values must not stay.
    """

    schema: TableSchema
    places: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    forgotten: tuple[int, ...] = ()


def follow(shape: EntryShape | None, relation: Relation, choose: Choose) -> EntryShape | Halt:
    """The shape that a target of entries takes by an announcement, or why it cannot take it."""
    announced = TableSchema.of(relation, choose)
    refusal = check_columns(relation, announced)
    if refusal is not None:
        return refusal
    if shape is None:
        empty = TableSchema(relation.oid, (), (), (), left_out=relation.left_out)
        shape = EntryShape(empty)
    known = shape.schema
    columns, chosen = list(known.columns), list(known.chosen)
    places = match_columns(known, relation)
    forgotten = list(shape.forgotten)
    # Older entries have no value of a new column, also if the source's older rows have a default.
    plain = [replace(c, missing_value=None, has_default=False) for c in relation.columns]
    for column, kind, place in zip(plain, announced.chosen, places, strict=True):
        if place == len(columns):
            columns.append(column)
            chosen.append(kind)
            continue
        if columns[place].hashed_by != column.hashed_by:
            forgotten.append(place)
        if not is_same_column(columns[place], column):
            columns[place] = column
        chosen[place] = kind
    # A rule now excludes these columns. They are dropped ones, too, but their values must go.
    excluded = frozenset(relation.left_out).difference(known.left_out)
    forgotten += [
        i
        for i, column in enumerate(columns)
        if i not in places and known.oid == relation.oid and column.attnum in excluded
    ]
    schema = replace(
        known,
        oid=relation.oid,
        columns=tuple(_name_dropped(columns, {*places})),
        chosen=tuple(chosen),
        left_out=relation.left_out,
    )
    return EntryShape(schema, {**shape.places, relation.version: tuple(places)}, tuple(forgotten))


def match_columns(known: TableSchema, relation: Relation) -> list[int]:
    """The index of each column of a relation in a schema; those that are new follow the others.

    A column is known by its attnum. If the catalog no longer shows it, if it was dropped and made
    again, or if the source's table is another one, it is known by its name.
    """
    places: dict[int, int] = {}
    if known.oid == relation.oid:
        attnums = {c.attnum: i for i, c in enumerate(known.columns) if c.attnum is not None}
        places = {
            i: attnums[column.attnum]
            for i, column in enumerate(relation.columns)
            if column.attnum in attnums
        }
    taken = {*places.values()}
    names = {column.name: i for i, column in enumerate(known.columns) if i not in taken}
    following = len(known.columns)
    for i, column in enumerate(relation.columns):
        if i not in places and column.name in names:
            places[i] = names[column.name]
        elif i not in places:
            places[i], following = following, following + 1
    return [places[i] for i in range(len(relation.columns))]


def is_same_column(one: Column, other: Column) -> bool:
    """Whether two columns have the same name and store the same values."""
    return _describe(one) == _describe(other)


def _describe(column: Column) -> tuple[object, ...]:
    type_ = (column.type_oid, column.type_modifier, column.base_oid, column.base_modifier)
    return column.name, column.attnum, type_, column.hashed_by


def _name_dropped(columns: list[Column], present: set[int]) -> list[Column]:
    """Give a dropped column another name if a present one now has its name, in any case."""
    taken = {encode_name(columns[i].name).lower() for i in present}
    named: list[Column] = []
    for i, column in enumerate(columns):
        name, number = column.name, 1
        while i not in present and encode_name(name).lower() in taken:
            number += 1
            name = f"{column.name} ({number})"
        taken.add(encode_name(name).lower())
        named.append(replace(column, name=name) if name != column.name else column)
    return named
