"""Decides the columns of a target of entries: all that its source's table ever had.

Entries stay as they were sent, so no change of the source's table halts the target. A column is
known by its attnum, or else by its name. A dropped column stays. If a rule of the settings hides a
column, its older values must go. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cdc_core.vocabulary import Column, Relation, encode_column
from spark_jobs.schema.evolution import Choose, TableSchema, is_valid_choice

# In the place of a hash key: a rule excludes the column.
_EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True)
class EntrySchema:
    """The columns of a target of entries, and which of them the columns of relations are.

    `table` has all columns, and no key. `indexes` has, for each relation version, the index in
    `table` of each of its columns. `hidden` lists the indexes of the columns whose older values
    must go, once for each rule that asked for it.
    """

    table: TableSchema
    indexes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    hidden: tuple[int, ...] = ()


NO_COLUMNS = EntrySchema(TableSchema(0, (), (), ()))


def evolve_entries(known: EntrySchema | None, relation: Relation, choose: Choose) -> EntrySchema:
    """The schema that a target of entries has after an announcement."""
    before = NO_COLUMNS if known is None else known
    columns, chosen, hidden = [*before.table.columns], [*before.table.chosen], [*before.hidden]
    indexes = match_columns(before.table, relation)
    for column, index in zip(relation.columns, indexes, strict=True):
        # Older entries have no value of a new column, also if the source's older rows have one.
        announced = replace(column, missing_value=None, has_default=False)
        kind = choose(column)
        kind = kind if kind is None or is_valid_choice(column, kind) else None
        if index == len(columns):
            columns.append(announced)
            chosen.append(kind)
            continue
        # The values of a column that was excluded are hidden already.
        if columns[index].hashed_by not in {announced.hashed_by, _EXCLUDED}:
            hidden.append(index)
        attnum = announced.attnum or columns[index].attnum
        columns[index], chosen[index] = replace(announced, attnum=attnum), kind
    if before.table.oid != relation.oid:
        # The attnums of another table say nothing of this one.
        for index in {*range(len(before.table.columns))}.difference(indexes):
            columns[index] = replace(columns[index], attnum=None)
    for index in _list_excluded(before.table, relation, indexes):
        columns[index] = replace(columns[index], hashed_by=_EXCLUDED)
        hidden.append(index)
    named = _name_columns(columns, indexes)
    # A stored column has fewer fields than an announced one. If nothing of it changed, it stays.
    kept = [
        old if is_same_column(old, new) else new
        for old, new in zip(before.table.columns, named, strict=False)
    ]
    table = replace(
        before.table,
        oid=relation.oid,
        columns=(*kept, *named[len(kept) :]),
        chosen=tuple(chosen),
    )
    return EntrySchema(table, {**before.indexes, relation.version: tuple(indexes)}, tuple(hidden))


def match_columns(known: TableSchema, relation: Relation) -> list[int]:
    """The index in a schema of each column of a relation; new columns come after all others.

    By attnum. By name if the attnum is not known, is new, or belongs to another table.
    """
    indexes: dict[int, int] = {}
    if known.oid == relation.oid:
        attnums = {c.attnum: i for i, c in enumerate(known.columns) if c.attnum is not None}
        indexes = {
            i: attnums[column.attnum]
            for i, column in enumerate(relation.columns)
            if column.attnum in attnums
        }
    taken = {*indexes.values()}
    names = {column.name: i for i, column in enumerate(known.columns) if i not in taken}
    end = len(known.columns)
    for i, column in enumerate(relation.columns):
        if i not in indexes and column.name in names:
            indexes[i] = names[column.name]
        elif i not in indexes:
            indexes[i], end = end, end + 1
    return [indexes[i] for i in range(len(relation.columns))]


def is_same_column(one: Column, other: Column) -> bool:
    """Whether two columns have the same name, attnum, type and hash key."""
    return _describe(one) == _describe(other)


def _describe(column: Column) -> tuple[object, ...]:
    type_ = (column.type_oid, column.type_modifier, column.base_oid, column.base_modifier)
    return column.name, column.attnum, type_, column.hashed_by


def _list_excluded(known: TableSchema, relation: Relation, indexes: list[int]) -> list[int]:
    """The columns that a rule may now exclude, and whose values are still there.

    If nothing shows which of the columns a rule excluded, all that are no longer sent count.
    """
    if known.oid != relation.oid or not relation.left_out:
        return []
    # 0 means a column whose attnum is not known.
    unknown, left_out = {None, 0}, {*relation.left_out}
    return [
        i
        for i, column in enumerate(known.columns)
        if i not in indexes
        and column.hashed_by != _EXCLUDED
        and (column.attnum in left_out or 0 in left_out or column.attnum in unknown)
    ]


def _name_columns(columns: list[Column], present: list[int]) -> list[Column]:
    """Give a column another name if one before it has its name, in any case; present ones first."""
    taken: set[str] = set()
    named = dict[int, Column]()
    for i in [*present, *(i for i in range(len(columns)) if i not in present)]:
        name, number = columns[i].name, 1
        while encode_column(name).lower() in taken:
            number += 1
            name = f"{columns[i].name} ({number})"
        taken.add(encode_column(name).lower())
        named[i] = columns[i] if name == columns[i].name else replace(columns[i], name=name)
    return [named[i] for i in range(len(columns))]
