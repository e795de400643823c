"""Finds what an operator must know about the types of published columns.

These are types in the settings that do not fit, values that change without a change of the row, and
types that the lake keeps as PostgreSQL's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from cdc_core.column_types import ColumnType
from cdc_core.settings import TableSettings
from cdc_core.source.problems import Problem, Severity
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.table_problems import table_error
from cdc_core.table_patterns import choose_rule

# For each column the type below its domains; for an array the type of its elements. The query does
# not use `regclass`, which needs USAGE on the schema.
_TYPES = """
with recursive base as (
  select a.attrelid, a.attnum, a.atttypid as type from pg_attribute a
  where a.attrelid = (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
                      where n.nspname = %s and c.relname = %s)
    and a.attnum > 0 and not a.attisdropped
  union all
  select b.attrelid, b.attnum, t.typbasetype
  from base b join pg_type t on t.oid = b.type where t.typtype = 'd'
)
select a.attname::text, t.oid::bigint, format_type(a.atttypid, a.atttypmod), e.typtype::text,
       e.typname like 'reg%%' and e.typnamespace = 'pg_catalog'::regnamespace,
       e.typnamespace <> 'pg_catalog'::regnamespace
from base b
join pg_type t on t.oid = b.type and t.typtype <> 'd'
join pg_type e on e.oid = case when t.typcategory = 'A' and t.typelem <> 0
                               then t.typelem else t.oid end
join pg_attribute a on a.attrelid = b.attrelid and a.attnum = b.attnum
order by a.attnum
"""


@dataclass(frozen=True, slots=True)
class _Type:
    """A column's type; `kind` is `pg_type.typtype` of the type, or of an array's elements."""

    column: str
    oid: int
    name: str
    kind: str
    is_reference: bool
    is_foreign: bool

    @property
    def changes_in_place(self) -> bool:
        """Whether a statement about another object can change the text of a value."""
        return self.kind in {"e", "c"} or self.is_reference


def find_type_problems(
    tables: Sequence[PublishedTable],
    rules: Mapping[str, TableSettings],
    connection: psycopg.Connection,
) -> Iterator[Problem]:
    """Find what an operator must know about the types of the kept columns."""
    for table in tables:
        rows = connection.execute(_TYPES, [table.schema, table.name]).fetchall()
        types = [_Type(*row) for row in rows if row[0] in table.kept_columns]
        yield from _find_choice_problems(table, rules, types)
        yield from _find_notes(table, types)


def _find_choice_problems(
    table: PublishedTable, rules: Mapping[str, TableSettings], types: Sequence[_Type]
) -> Iterator[Problem]:
    found = choose_rule(rules, table.table, having=lambda rule: rule.types)
    if found is None:
        return
    pattern, rule = found
    section = f"[tables.{pattern.text!r}] types"
    known = {kind.column: kind for kind in types}
    missing = sorted(rule.types.keys() - known)
    if missing and pattern.is_exact:
        yield table_error(
            table,
            "types_without_column",
            f"{section} names columns that are not sent",
            ", ".join(known),
            ", ".join(missing),
            "correct the names",
        )
    for column in sorted(rule.types.keys() & known):
        kind, chosen = known[column], ColumnType.parse(rule.types[column])
        if column in table.key_columns:
            yield table_error(
                table,
                "types_key",
                f"{section} changes a column that identifies rows, and the table halts",
                "columns outside the key",
                column,
                f"take {column} out of {section}",
            )
        elif not chosen.holds(kind.oid):
            yield table_error(
                table,
                "types_unfit",
                f"{section} gives {column} a type that does not hold its values, and the table"
                " halts",
                "string, or for whole numbers and numeric a decimal(p,s) or an integer",
                f"{chosen} for {kind.name}",
                f"correct {column} in {section}, or take it out",
            )


def _find_notes(table: PublishedTable, types: Sequence[_Type]) -> Iterator[Problem]:
    changing = [kind for kind in types if kind.changes_in_place]
    if changing:
        yield Problem(
            Severity.NOTE,
            "type_in_place",
            "some statements change the text of values without a change of rows, and PostgreSQL"
            " does not send them: a row in the lake keeps the old text until the row changes",
            "no ALTER TYPE that renames a label or changes attributes, and no rename of an object"
            " that a reg… value names",
            _name(changing),
            "nothing; after such a statement, update the rows, for example to their own values",
            table=str(table.table),
        )
    foreign = [kind for kind in types if kind.is_foreign]
    if foreign:
        yield Problem(
            Severity.NOTE,
            "type_as_text",
            "the lake keeps values of types that are not built-in as text",
            "built-in types, or readers of that text",
            _name(foreign),
            "nothing",
            table=str(table.table),
        )


def _name(types: Sequence[_Type]) -> str:
    return ", ".join(f"{kind.column} ({kind.name})" for kind in types)
