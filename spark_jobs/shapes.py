"""Which announcements of a table follow one another without a change of rows.

A plain new column follows; whatever else may change rows without row changes in the stream halts
the table. Pure values: a table's shape is stored in the metadata of its Delta columns, so it
changes in the same commit as the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cdc_core.vocabulary import Column, Relation, encode_name, quote_identifier

METADATA_KEY = "walgate.column"


@dataclass(frozen=True, slots=True)
class Halt:
    """Why a table cannot go on, and what to do."""

    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns in the order of the lake, and its key."""

    oid: int
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    published: str | None = None  # By what it is sent, as its first announcement said.

    @classmethod
    def of(cls, relation: Relation) -> Shape:
        """The shape that a relation announces."""
        return cls(relation.oid, relation.columns, relation.key, relation.published)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns in the lake."""
        return tuple(encode_name(column.name) for column in self.columns)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The source's names of the key columns, in key order."""
        return tuple(self.columns[i].name for i in self.key)

    def describe_column(self, index: int) -> dict[str, str]:
        """The Delta metadata of a column."""
        column = self.columns[index]
        place = self.key.index(index) if index in self.key else None
        stored = [
            column.name,
            column.attnum,
            column.type_oid,
            column.type_modifier,
            place,
            column.base_oid,
            column.base_modifier,
        ]
        return {METADATA_KEY: json.dumps(stored)}

    @classmethod
    def from_metadata(cls, oid: int, fields: Sequence[Mapping[str, object]]) -> Shape:
        """Read back what `describe_column` wrote, from the metadata of each Delta column."""
        columns: list[Column] = []
        places: dict[int, int] = {}
        for metadata in fields:
            stored = metadata.get(METADATA_KEY)
            if stored is None:
                continue
            name, attnum, type_oid, type_modifier, place, base_oid, base_modifier = json.loads(
                str(stored)
            )
            if place is not None:
                places[place] = len(columns)
            columns.append(
                Column(
                    name,
                    attnum,
                    type_oid,
                    type_modifier,
                    type_name="",
                    not_null=False,
                    key_ordinal=None if place is None else place + 1,
                    in_identity=False,
                    base_oid=base_oid,
                    base_modifier=base_modifier,
                )
            )
        return cls(oid, tuple(columns), tuple(places[place] for place in sorted(places)))


def admit(relation: Relation) -> Shape | Halt:
    """The shape of a table's first announcement, or why it cannot be kept."""
    shape = Shape.of(relation)
    if not shape.key:
        return Halt(
            "the table has no key: its rows cannot be told apart",
            "add a primary key, or a unique index as its replica identity",
        )
    reserved = [column.name for column in relation.columns if column.name.startswith("_")]
    if reserved:
        return Halt(
            f"column {quote_identifier(reserved[0])} begins with _, as the lake's own columns do",
            "rename the column, or leave it out of the publication's column list",
        )
    seen: dict[str, str] = {}
    for column in relation.columns:
        other = seen.setdefault(encode_name(column.name).lower(), column.name)
        if other != column.name:
            return Halt(
                f"columns {quote_identifier(other)} and {quote_identifier(column.name)} differ "
                "in case only",
                "rename one of them, or leave it out of the publication's column list",
            )
    return shape


def follow(shape: Shape, relation: Relation) -> Shape | Halt:
    """The shape after a further announcement: the same, with plain new columns, or a halt."""
    admitted = admit(relation)
    if isinstance(admitted, Halt):
        return admitted
    if relation.oid != shape.oid:
        return _refuse("the table was dropped and made again")
    known = {column.name for column in shape.columns}
    added = [column for column in relation.columns if column.name not in known]
    changes = [_compare(column, relation) for column in shape.columns]
    if admitted.key_names != shape.key_names:
        changes.append(f"the key changed to ({', '.join(admitted.key_names)})")
    newest = max(column.attnum or 0 for column in shape.columns)
    changes += [_doubt(column, newest) for column in added]
    if None not in {shape.published, relation.published} and relation.published != shape.published:
        changes.append(
            "how the table is published changed (left out and taken in again, its publication made"
            " again or altered, another row filter or column list): what was not sent meanwhile is"
            " not in the log"
        )
    for change in filter(None, changes):
        return _refuse(change)
    return replace(shape, columns=(*shape.columns, *added))


def _compare(known: Column, relation: Relation) -> str | None:
    """What happened to a column, if anything that rows may not have followed."""
    name = quote_identifier(known.name)
    column = next((column for column in relation.columns if column.name == known.name), None)
    heirs = [c.name for c in relation.columns if c.attnum == known.attnum is not None]
    if column is None:
        change = f"renamed to {quote_identifier(heirs[0])}" if heirs else "dropped"
        return f"column {name} was {change}"
    if column.attnum is None or known.attnum is None:
        return f"column {name} was renamed or dropped since it was announced"
    if column.attnum != known.attnum:
        return f"column {name} was dropped and added again"
    if (column.type_oid, column.type_modifier) != (known.type_oid, known.type_modifier):
        return f"the type of column {name} changed to {column.type_name}"
    return None


def _doubt(added: Column, newest: int) -> str | None:
    """Why older rows may have another value in a new column than the one announced."""
    name = quote_identifier(added.name)
    if added.attnum is None:
        return f"new column {name} was renamed or dropped since it was announced"
    if added.attnum <= newest:
        return f"column {name} was not published before: its older values are not in the log"
    if added.has_default and added.missing_value is None:
        return f"new column {name} has a default that older rows may differ in"
    return None


def _refuse(reason: str) -> Halt:
    return Halt(reason, "delete the table's folder from the lake and copy the table again")
