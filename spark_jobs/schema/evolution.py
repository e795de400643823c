"""Decides whether a table can follow a new relation announcement, or halts.

A table follows if the announcement only adds columns whose values in older rows are known. A table
halts if rows may have changed without row changes in the stream, or if a rule of the settings has
changed: exclude, hash or `types`. It also halts if the lake cannot hold it, for example without a
key. Pure values: the metadata of its Delta columns hold a table's schema, so the schema changes in
the same commit as the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc_core.column_types import ColumnType
from cdc_core.vocabulary import (
    Column,
    Relation,
    TableName,
    encode_column,
    encode_name,
    quote_identifier,
)

METADATA_KEY = "walgate.column"
# On one of the lake's own columns: what a table schema has besides the source's columns.
TABLE_KEY = "walgate.shape"

# Returns the type that the settings choose for a column; None is the column's own type.
Choose = Callable[[Column], str | None]


def choose_own(_: Column) -> None:
    """Choose the column's own type, as without settings."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Why a table cannot go on, and what to do about it.

    A whole backfill ends a `curable` halt, and Walgate queues that backfill itself. In such a halt,
    rows may have changed without a change in the stream, and nothing else is wrong.
    """

    reason: str
    fix: str
    curable: bool = False


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table schema: columns in the order of the lake, indexes of the key columns, chosen types.

    `chosen` has, for each column, the type that the settings chose; None is the column's own type.
    """

    oid: int
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    chosen: tuple[str | None, ...]
    # How the table was published, and its last rewrite, as its first announcement said.
    published: str | None = None
    rewritten: int = 0
    # The attnums of the columns that a rule had kept from the log at the first announcement.
    left_out: tuple[int, ...] = ()

    @classmethod
    def of(cls, relation: Relation, choose: Choose = choose_own) -> TableSchema:
        """The table schema that a relation announces."""
        chosen = tuple(choose(column) for column in relation.columns)
        return cls(
            oid=relation.oid,
            columns=relation.columns,
            key=relation.key,
            chosen=chosen,
            published=relation.published,
            rewritten=relation.rewritten,
            left_out=relation.left_out,
        )

    def take(self, width: int) -> TableSchema:
        """The schema with only its first columns."""
        return replace(self, columns=self.columns[:width], chosen=self.chosen[:width])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns in the lake."""
        return tuple(encode_column(column.name) for column in self.columns)

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
            self.chosen[index],
            column.hashed_by,
        ]
        return {METADATA_KEY: json.dumps(stored)}

    def describe_table(self) -> dict[str, str]:
        """The Delta metadata that describe the table, for one of the lake's own columns."""
        stored = [self.oid, self.published, self.rewritten, self.left_out]
        return {TABLE_KEY: json.dumps(stored)}

    @classmethod
    def from_metadata(cls, fields: Sequence[Mapping[str, object]]) -> TableSchema:
        """Read a table schema from the metadata of each Delta column.

        Raises: ValueError if they hold none, for example if another writer replaced the columns.
        """
        (table,) = (metadata[TABLE_KEY] for metadata in fields if TABLE_KEY in metadata)
        oid, published, rewritten, left_out = json.loads(str(table))
        columns: list[Column] = []
        chosen: list[str | None] = []
        places: dict[int, int] = {}
        for metadata in fields:
            stored = metadata.get(METADATA_KEY)
            if stored is None:
                continue
            name, attnum, type_oid, type_modifier, place, *more = json.loads(str(stored))
            base_oid, base_modifier, kind, hashed_by = more
            chosen.append(kind)
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
                    hashed_by=hashed_by,
                )
            )
        key = tuple(places[place] for place in sorted(places))
        return cls(oid, tuple(columns), key, tuple(chosen), published, rewritten, tuple(left_out))


def accept_first(relation: Relation, choose: Choose = choose_own) -> TableSchema | Halt:
    """The table schema of a first announcement, or why the lake cannot hold the table."""
    schema = TableSchema.of(relation, choose)
    if not schema.key:
        return Halt(
            "the table has no key, so Walgate cannot identify its rows",
            "add a primary key, or a unique index as its replica identity",
        )
    reserved = [column.name for column in relation.columns if column.name.startswith("_")]
    if reserved:
        return Halt(
            f"the name of column {quote_identifier(reserved[0])} begins with _, as only the lake's"
            " own columns may",
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
    return check_choices(schema) or schema


def evolve(
    schema: TableSchema, relation: Relation, choose: Choose = choose_own
) -> TableSchema | Halt:
    """The table schema after a further announcement: the same with new columns, or a halt."""
    admitted = accept_first(relation, choose)
    if isinstance(admitted, Halt):
        return admitted
    if relation.oid != schema.oid:
        return _refuse("the table was dropped and made again", relation.table)
    known = {column.name for column in schema.columns}
    added = [column for column in relation.columns if column.name not in known]
    changes = [_compare(column, relation, schema) for column in schema.columns]
    if admitted.key_names != schema.key_names:
        changes.append(f"the key changed to ({', '.join(admitted.key_names)})")
    newest = max(column.attnum or 0 for column in schema.columns)
    left_out = frozenset((*schema.left_out, *relation.left_out))
    changes += [_doubt(column, newest, left_out) for column in added]
    if (
        None not in {schema.published, relation.published}
        and relation.published != schema.published
    ):
        changes.append(
            "the publication of the table changed (the table was removed and added again, the"
            " publication was made again or altered, or its row filter or column list changed):"
            " the log lacks the changes that PostgreSQL did not send"
        )
    if relation.rewritten != schema.rewritten:
        changes.append(
            "the table was rewritten by ALTER COLUMN … TYPE … USING, or it was renamed, changed"
            " under its other name and renamed back: its rows may have values that the stream did"
            " not report"
        )
    for change in filter(None, changes):
        return _refuse(change, relation.table)
    for column, kind in zip(schema.columns, schema.chosen, strict=True):
        # Choose for the column of the table schema: its base type is known.
        wanted = choose(column)
        if wanted != kind:
            return _refuse_choice(column, kind, wanted, relation.table)
    chosen = (*schema.chosen, *(choose(column) for column in added))
    return replace(schema, columns=(*schema.columns, *added), chosen=chosen)


def check_choices(schema: TableSchema) -> Halt | None:
    """Why a table cannot have the types that the settings chose; None if it can."""
    return next(filter(None, map(_explain_choice, _list_choices(schema))), None)


def is_valid_choice(column: Column, kind: str) -> bool:
    """Whether a type that the settings chose holds the values of a column."""
    return ColumnType.parse(kind).holds(column.base_oid or column.type_oid)


def _list_choices(schema: TableSchema) -> list[tuple[Column, str, bool]]:
    """Each column with a chosen type, that type, and whether the column is in the key."""
    return [
        (column, kind, i in schema.key)
        for i, (column, kind) in enumerate(zip(schema.columns, schema.chosen, strict=True))
        if kind is not None
    ]


def _explain_choice(choice: tuple[Column, str, bool]) -> Halt | None:
    """Why a column cannot have the type that the settings chose; None if it can."""
    column, kind, is_key = choice
    name = quote_identifier(column.name)
    fix = "correct `types` in the table's section of walgate.toml"
    if is_key:
        return Halt(f"`types` makes {name} {kind}, but a key column keeps its own type", fix)
    if not is_valid_choice(column, kind):
        # The columns of a table do not have the name of their type.
        values = column.type_name or "the values of the column"
        return Halt(f"`types` makes {name} {kind}, which does not hold {values}", fix)
    return None


def _refuse_choice(column: Column, kind: str | None, wanted: str | None, table: TableName) -> Halt:
    """The halt for a new choice of type: the table has rows of the old type, which must not mix."""
    name, own = quote_identifier(column.name), "its own type"
    return Halt(
        f"`types` gives column {name} {wanted or own}, but the table has it as {kind or own}",
        f"set it back to {kind or own} in walgate.toml, or build the table again with"
        f" `walgate rebuild '{table}'`",
    )


def explain_hash(name: str, before: str | None, now: str | None) -> str | None:
    """Say why values from before and after a change of a hash rule must not mix; None if they may.

    `before` and `now` are the marks of the hash keys; None means that values are as sent.
    """
    quoted = quote_identifier(name)
    if before == now:
        return None
    if before is None:
        return f"column {quoted} is now hashed, but older rows have its values without a hash"
    if now is None:
        return f"column {quoted} is no longer hashed, but older rows have hashes"
    return (
        f"column {quoted} is now hashed with another key, but older rows have hashes of the old key"
    )


def explain_left_out(name: str) -> str:
    """Why rows lack the values of a column that a rule no longer excludes."""
    return f"column {quote_identifier(name)} is no longer excluded, but older rows lack its values"


def explain_excluded(name: str) -> str:
    """Why a table cannot keep a column that a rule excludes now."""
    return f"column {quote_identifier(name)} is now excluded, but older rows have its values"


def _compare(known: Column, relation: Relation, schema: TableSchema) -> str | None:
    """Say what changed in a column so that the table cannot follow; None if nothing did."""
    name = quote_identifier(known.name)
    column = next((column for column in relation.columns if column.name == known.name), None)
    heirs = [c.name for c in relation.columns if c.attnum == known.attnum is not None]
    newly_left_out = frozenset(relation.left_out).difference(schema.left_out)
    if column is None and known.attnum in newly_left_out:
        return explain_excluded(known.name)
    if column is None:
        change = f"renamed to {quote_identifier(heirs[0])}" if heirs else "dropped"
        return f"column {name} was {change}"
    return _compare_columns(known, column)


def _compare_columns(known: Column, column: Column) -> str | None:
    """Say what changed in a column that still has its name; None if nothing did."""
    name = quote_identifier(known.name)
    if column.attnum is None or known.attnum is None:
        return f"column {name} was renamed or dropped since it was announced"
    if column.attnum != known.attnum:
        return f"column {name} was dropped and added again"
    if (rule := explain_hash(column.name, known.hashed_by, column.hashed_by)) is not None:
        return rule
    if (column.type_oid, column.type_modifier) != (known.type_oid, known.type_modifier):
        return f"the type of column {name} changed to {column.type_name}"
    return None


def _doubt(added: Column, newest: int, left_out: frozenset[int]) -> str | None:
    """Why older rows may have another value in a new column than the announced one; None if not."""
    name = quote_identifier(added.name)
    if added.attnum is None:
        return f"new column {name} was renamed or dropped since it was announced"
    # 0 means a column whose attnum is not known.
    if left_out.intersection({added.attnum, 0}):
        return explain_left_out(added.name)
    if added.attnum <= newest:
        return f"column {name} was not published before: its older values are not in the log"
    if added.has_default and added.missing_value is None:
        return (
            f"the values of new column {name} in older rows are unknown: the catalog does not show"
            " its default for them, the table was rewritten, or a column list named the column"
        )
    return None


def _refuse(reason: str, table: TableName) -> Halt:
    fix = (
        "nothing under Dagster, which backfills the table by itself; otherwise run"
        f" `walgate backfill '{table}'`"
    )
    return Halt(reason, fix, curable=True)
