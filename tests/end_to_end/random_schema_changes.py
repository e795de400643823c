"""Schema changes that a generator draws, and what each must lead to by docs/limits.md.

A change is followed, or it halts its table before the first transaction that shows it. Where
capture may have read the catalog only after a later change, it may halt the table all the same.
What docs/limits.md says that the stream does not show is not drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from tests.end_to_end.random_columns import Column, draw_kind, draw_value, quote, write
from tests.end_to_end.random_tables import RandomTable


class Effect(Enum):
    """What a schema change must lead to once a row shows it."""

    FOLLOWED = "followed"
    HALTED = "halted"
    EITHER = "followed, or halted"
    LEAVES = "not sent from here on"
    RETURNS = "sent again; halted where anything was not sent"


@dataclass(frozen=True)
class Change:
    """Statements of one schema change, in one transaction, and what must come of them."""

    statements: list[str]
    effect: Effect
    reason: str = ""


RENAMED = "renamed to|renamed or dropped|dropped and added again|was dropped"
MADE_AGAIN = "dropped and made again"
UNKNOWN_OLDER = "older rows"
# So it looks, wherever the files and the catalog's row of a column were both written.
REWRITTEN = "was rewritten"

Draw = Callable[[random.Random, RandomTable], Change]


def draw_change(rng: random.Random, table: RandomTable, *, halting: bool) -> Change | None:
    """A change of one sort or the other; None where the one that was drawn does not suit."""
    draw: Draw = rng.choice(HALTING if halting else FOLLOWED)
    try:
        return draw(rng, table)
    except IndexError:
        return None


def _add_plain(rng: random.Random, table: RandomTable) -> Change:
    column = _younger(rng, table)
    table.columns.append(column)
    # A rewrite may have filled it, as far as the catalog tells.
    effect = Effect.EITHER if table.is_rewritten else Effect.FOLLOWED
    return Change([_alter(table, f"add {column.quoted} {column.kind}")], effect, UNKNOWN_OLDER)


def _add_with_default(rng: random.Random, table: RandomTable) -> Change:
    column = _younger(rng, table)
    statements = [
        _alter(table, f"add {column.quoted} {column.kind} {_default(rng, table, column)}")
    ]
    table.columns.append(column)
    if rng.random() < 0.4:
        statements.append(_alter(table, f"alter {column.quoted} drop default"))
    # Of a partitioned table the catalog has the older rows' value with its partitions only.
    effect = Effect.EITHER if table.partitioned else Effect.FOLLOWED
    return Change(statements, effect, UNKNOWN_OLDER)


def _add_then_default(rng: random.Random, table: RandomTable) -> Change:
    """Older rows are NULL in it, but the catalog shows a default and no value of theirs."""
    column = _younger(rng, table)
    table.columns.append(column)
    default = _default(rng, table, column)
    return Change(
        [
            _alter(table, f"add {column.quoted} {column.kind}"),
            _alter(table, f"alter {column.quoted} set {default}"),
        ],
        Effect.EITHER,
        UNKNOWN_OLDER,
    )


def _add_computed(_: random.Random, table: RandomTable) -> Change:
    """A column that is not sent, for which the table is rewritten.

    Since 18 the source refuses to change rows whose identity it is a part of.
    """
    if table.identity == "f":
        raise IndexError
    table.has_computed = table.is_rewritten = True
    column = Column(table.name_younger(), "int4")
    written = f"{column.quoted} int4 generated always as (o * 2) stored"
    return Change([_alter(table, f"add {written}")], Effect.EITHER, REWRITTEN)


def _identity(_: random.Random, table: RandomTable) -> Change:
    if table.identity not in "df" or table.deferrable or table.has_computed:
        raise IndexError
    other = {"d": "f", "f": "d"}[table.identity]
    return Change(table.set_identity(other), Effect.FOLLOWED)


def _nothing_of_note(rng: random.Random, table: RandomTable) -> Change:
    """What changes no row and no column that is sent."""
    column = rng.choice(table.others())
    changes = [
        (_alter(table, f"alter {column.quoted} set statistics 7"), Effect.EITHER),
        (f"create index on {table.quoted} (o)", Effect.FOLLOWED),
        (f"comment on table {table.quoted} is 'it''s'", Effect.FOLLOWED),
        (_alter(table, f"alter {column.quoted} set default null"), Effect.EITHER),
    ]
    if table.is_plain:
        changes.append((f"cluster {table.quoted} using {_key_index(table)}", Effect.EITHER))
    chosen, effect = rng.choice(changes)
    table.is_rewritten |= chosen.startswith("cluster")
    return Change([chosen], effect, REWRITTEN)


def _add_volatile(rng: random.Random, table: RandomTable) -> Change:
    column = Column(table.name_younger(), "float8")
    table.columns.append(column)
    statements = [_alter(table, f"add {column.quoted} float8 default random()")]
    if rng.random() < 0.5:
        statements.append(_alter(table, f"alter {column.quoted} drop default"))
    return Change(statements, Effect.HALTED, UNKNOWN_OLDER)


def _drop(rng: random.Random, table: RandomTable) -> Change:
    column = _pick(rng, table)
    table.columns.remove(column)
    return Change([_alter(table, f"drop {column.quoted}")], Effect.HALTED, "was dropped")


def _drop_and_add(rng: random.Random, table: RandomTable) -> Change:
    column = _pick(rng, table)
    table.columns.remove(column)
    table.columns.append(column)
    return Change(
        [
            _alter(table, f"drop {column.quoted}"),
            _alter(table, f"add {column.quoted} {column.kind}"),
        ],
        Effect.HALTED,
        "dropped and added again",
    )


def _rename(rng: random.Random, table: RandomTable) -> Change:
    column = _pick(rng, table)
    name = table.name_younger()
    table.change_column(column, name=name)
    return Change(
        [f'alter table {table.quoted} rename {column.quoted} to "{name}"'], Effect.HALTED, RENAMED
    )


def _exchange_names(rng: random.Random, table: RandomTable) -> Change:
    """Two columns of one type that take each other's name."""
    one = _pick(rng, table)
    other = rng.choice([c for c in table.others() if c.kind == one.kind and c != one])
    rename = f"alter table {table.quoted} rename "
    table.change_column(one, is_long=other.is_long)
    table.change_column(other, is_long=one.is_long)
    return Change(
        [
            f"{rename}{one.quoted} to away",
            f"{rename}{other.quoted} to {one.quoted}",
            f"{rename}away to {other.quoted}",
        ],
        Effect.HALTED,
        RENAMED,
    )


# From a type: another, and how its values become that.
_CONVERSIONS = {
    "int4": (("int8", ""), ("int8", "using {} / 2"), ("int4", "using {} / 2"), ("numeric", "")),
    "varchar(10)": (("varchar(20)", ""), ("text", ""), ("varchar(10)", "using upper({})")),
    "numeric(10,2)": (("numeric(12,2)", ""), ("numeric(12,3)", ""), ("numeric(10,2)", "using -{}")),
}


def _retype(rng: random.Random, table: RandomTable) -> Change:
    column = rng.choice([c for c in table.others() if c.kind in _CONVERSIONS])
    kind, using = rng.choice(_CONVERSIONS[column.kind])
    is_same = kind == column.kind
    table.change_column(column, kind=kind)
    written = f"alter {column.quoted} type {kind} {using.format(column.quoted)}"
    reason = REWRITTEN if is_same else f"type of column {column.name} changed"
    return Change([_alter(table, written)], Effect.HALTED, reason)


def _change_key(_: random.Random, table: RandomTable) -> Change:
    if not table.is_plain or table.deferrable or table.identity == "i":
        raise IndexError
    names = ", ".join(c.quoted for c in table.key)
    return Change(
        [
            _alter(table, f"drop constraint {_key_index(table)}"),
            _alter(table, f"add primary key ({names}, o)"),
        ],
        Effect.HALTED,
        "the key changed to",
    )


def _make_again(_: random.Random, table: RandomTable) -> Change:
    statements = [f"drop table {table.quoted}", *table.make()]
    return Change(statements, Effect.HALTED, MADE_AGAIN)


FOLLOWED: tuple[Draw, ...] = (
    _add_plain,
    _add_plain,
    _add_with_default,
    _add_with_default,
    _add_then_default,
    _add_computed,
    _identity,
    _nothing_of_note,
)
HALTING: tuple[Draw, ...] = (
    _add_volatile,
    _drop,
    _drop_and_add,
    _rename,
    _exchange_names,
    _retype,
    _retype,
    _change_key,
    _make_again,
)


def _alter(table: RandomTable, action: str) -> str:
    return f"alter table {table.quoted} {action}"


def _key_index(table: RandomTable) -> str:
    return quote(f"{table.name}_pkey")


def _younger(rng: random.Random, table: RandomTable) -> Column:
    return Column(table.name_younger(), draw_kind(rng, table.kinds))


def _default(rng: random.Random, table: RandomTable, column: Column) -> str:
    if "regrole" in column.kind:
        raise IndexError  # PostgreSQL takes none of these for a default.
    value = draw_value(rng, replace(column, not_null=True), table.kinds)
    return f"default {write(value, column.kind)}"


def _pick(rng: random.Random, table: RandomTable) -> Column:
    return rng.choice(table.others())
