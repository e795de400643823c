"""Columns of any type, values for them, and keys, as a generator draws them.

A key is drawn by its number. Equal numbers are equal keys, however they are spelt: PostgreSQL holds
1.5 and 1.50 for the same key, yet sends what was written.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psycopg import sql

from tests.spark.type_values import VALUES, make_arrays

# Too long for a row: stored out of line, so that an update may not send it.
LONG = 2300
_DAYS = ("infinity", "-infinity", "0044-03-15 BC", "10000-01-01")
_MORE_VALUES = {
    "varchar(20)": ["", "twenty characters in"],
    "numeric(12,2)": ["0.10", "9999999999.99"],
    "numeric(12,3)": ["0.100", "999999999.999"],
}
_OFTEN = ("int4", "text", "numeric", "timestamptz", "jsonb", "bool", "float8", "text[]", "bytea")


@dataclass(frozen=True)
class Column:
    """A column of a table as it is now; one `not_null` is always given a value."""

    name: str
    kind: str
    not_null: bool = False
    is_long: bool = False

    @property
    def quoted(self) -> str:
        """Its name in SQL."""
        return quote(self.name)


def quote(name: str) -> str:
    """An identifier in SQL."""
    return sql.Identifier(name).as_string(None)


def write(text: str | None, kind: str) -> str:
    """A value in SQL."""
    return f"{sql.Literal(text).as_string(None)}::{kind}"


def draw_kind(rng: random.Random, kinds: Mapping[str, list[str]]) -> str:
    """A type of any family, plain ones more often; now and then an array of it."""
    if rng.random() < 0.4:
        return rng.choice(_OFTEN)
    kind = rng.choice(sorted(kinds))
    return f"{kind}[]" if rng.random() < 0.25 else kind


def draw_value(rng: random.Random, column: Column, kinds: Mapping[str, list[str]]) -> str | None:
    """A value's text; NULL now and then."""
    if not column.not_null and rng.random() < 0.15:
        return None
    if column.is_long:
        return rng.choice(("short", "s" * 40)) if rng.random() < 0.3 else draw_long(rng)
    if column.kind in {"int2", "int4", "int8"} and rng.random() < 0.7:
        return str(rng.randint(-99, 99))
    return rng.choice(find_values(column.kind, kinds))


def draw_long(rng: random.Random) -> str:
    """A text that is stored out of line."""
    return f"{rng.randrange(10**6)}" + rng.choice("xyz") * LONG


def find_values(kind: str, kinds: Mapping[str, list[str]]) -> list[str]:
    """The values of a type."""
    if kind.endswith("[]"):
        return make_arrays(kind[:-2], find_values(kind[:-2], kinds))
    return kinds.get(kind) or _MORE_VALUES.get(kind) or VALUES[kind]


def _float_key(number: int) -> list[str]:
    return {0: ["0", "-0"], 1: ["NaN"], 2: ["-Infinity"]}.get(number, [f"{number}.1"])


def _day_key(number: int) -> list[str]:
    return [_DAYS[number] if number < len(_DAYS) else f"{1900 + number}-02-28"]


# A number's spellings as a key, by type.
KEYS: dict[str, Callable[[int], list[str]]] = {
    "int4": lambda n: [str(n)],
    "int8": lambda n: [str(n - 20)],
    "text": lambda n: [("", " k", "K'\\", "é\n", "k")[n % 5] + str(n)],
    "varchar(40)": lambda n: [f"v{n} "],
    "char(9)": lambda n: [f"c{n}"],
    "uuid": lambda n: [str(uuid.UUID(int=n))],
    "bytea": lambda n: [f"\\x{n:06x}"],
    "oid": lambda n: [str(4294967295 - n)],
    "numeric": lambda n: [f"{n}.5", f"{n}.50"],
    "numeric(10,2)": lambda n: [f"{n}.25"],
    "float8": _float_key,
    "date": _day_key,
    "timestamptz": _day_key,
    "interval": lambda n: [f"{n} day", f"{24 * n}:00:00"],
    "jsonb": lambda n: [f'{{"a": {n}}}', f'{{"a": {n}.0}}'],
    "numrange": lambda n: [f"[{n},)", f"[{n}.0,)"],
    "inet": lambda n: [f"10.0.{n // 250}.{n % 250}"],
    "text[]": lambda n: [f"{{a,NULL,{n}}}"],
    "long": lambda n: [str(n) + "k" * LONG],
}
