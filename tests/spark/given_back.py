"""Whether a table of the lake gives back the texts of the source, by `_raw` or typed values alone.

Both have a column `k` to sort by, then `c0`, `c1`, …. A string gives back itself, any other typed
value what PostgreSQL writes for it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa

_OUTPUT = (
    "set datestyle = iso; set intervalstyle = postgres; set timezone = utc;"
    " set extra_float_digits = 3; set bytea_output = hex"
)


def compare(
    connection: psycopg.Connection, table: str, kinds: list[str], held: pa.Table
) -> list[tuple[str, ...]]:
    """The values that Delta does not give back, with where they stand."""
    connection.execute(_OUTPUT)
    with (
        connection.cursor() as cursor,
        cursor.copy(f"copy (select * from {table} order by k) to stdout") as copy,
    ):
        truth = list(copy.rows())
    assert len(truth) == len(held)
    raws = [dict(raw or ()) for raw in held.column("_raw").to_pylist()]
    wrong: list[tuple[str, ...]] = []
    for i, kind in enumerate(kinds):
        name = f"c{i}"
        column, typed = held.column(name), 0
        for row, value, raw in zip(truth, column.to_pylist(), raws, strict=True):
            found = raw.get(name)
            if found is None and value is not None:
                found = give_back(connection, kind, column.type, value)
            typed += value is not None
            if found != row[i + 1]:
                wrong.append((table, kind, str(row[i + 1])[:100], str(found)[:100]))
        if not typed:
            wrong.append((table, kind, "a typed value", "none"))
    return wrong


def give_back(connection: psycopg.Connection, kind: str, held: pa.DataType, value: Any) -> str:
    """The text of a typed value alone."""
    if pa.types.is_string(held):
        return str(value)
    if pa.types.is_list(held):
        kind = "text[]" if pa.types.is_string(held.value_type) else kind
        bare = is_open(kind.removesuffix("[]"), held.value_type)
        value = [trim(v) if bare and v is not None else v for v in value]
    elif is_open(kind, held):
        value = trim(value)
    elif kind == "xid8":
        value = str(value)
    ((text,),) = connection.execute(f"select format('%%s', %s::{kind})", [value]).fetchall()
    return str(text)


def is_open(kind: str, held: pa.DataType) -> bool:
    """Whether a decimal stands for a numeric without scale."""
    return held == pa.decimal128(38, 18) or (kind == "numeric" and pa.types.is_decimal(held))


def trim(value: Decimal) -> Decimal:
    """A decimal without the zeros that end its fraction, as a numeric without scale has it."""
    return Decimal(f"{value:f}".rstrip("0").rstrip("."))
