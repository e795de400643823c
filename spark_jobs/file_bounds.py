"""The statistics of a Parquet file that we write ourselves, by which Delta passes over files.

Every bound is true, if not the nearest: moments are rounded outwards to milliseconds, long texts
cut off. A column that has no bound here is one whose file is always read.

Source: the Delta protocol, section Per-file Statistics.
"""

from __future__ import annotations

import json
from datetime import MAXYEAR, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

# As many columns as Delta bounds of itself; and those whose NULLs are counted wherever they stand.
_MOST_COLUMNS = 32
_ALWAYS_COUNTED = ("_raw", "_holes")
_MOST_CHARACTERS = 32
# No character comes after it.
_GREATEST = "\U0010ffff"
_MILLISECOND = timedelta(milliseconds=1)


# Of one column, so of one type.
_Ends: TypeAlias = tuple[Any, Any]


class Bounds:
    """What is known of the rows of one file so far."""

    def __init__(self, schema: pa.Schema) -> None:
        """No row is known."""
        bounded = schema.names[:_MOST_COLUMNS]
        self._bounded = [name for name in bounded if _has_order(schema.field(name).type)]
        self._nulls = dict.fromkeys([*bounded, *_ALWAYS_COUNTED], 0)
        # None where a value has no place in an order, such as NaN.
        self._known: dict[str, _Ends | None] = {}
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows into account."""
        self._rows += rows.num_rows
        for name in self._nulls:
            self._nulls[name] += rows.column(name).null_count
        for name in self._bounded:
            own = _find_bounds(rows.column(name))
            if name not in self._known:
                self._known[name] = own
            elif own is None or (held := self._known[name]) is None:
                self._known[name] = None
            elif own[0] is not None:
                self._known[name] = own if held[0] is None else _join(held, own)

    def format(self) -> str:
        """Give the statistics as JSON."""
        ends: list[dict[str, str]] = [{}, {}]
        for name, known in self._known.items():
            if known is None or known[0] is None:
                continue
            texts = [_format_least(known[0]), _format_most(known[1])]
            for end, text in zip(ends, texts, strict=True):
                if text is not None:
                    end[name] = text
        least, most = (
            "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in end.items()) + "}"
            for end in ends
        )
        nulls = json.dumps(self._nulls)
        return (
            f'{{"numRecords":{self._rows},"minValues":{least},"maxValues":{most},'
            f'"nullCount":{nulls}}}'
        )


def _has_order(kind: pa.DataType) -> bool:
    """Whether the smallest and the greatest value of a type say what lies between."""
    kinds = pa.types
    ordered = (kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_temporal)
    return any(is_kind(kind) for is_kind in (*ordered, kinds.is_string))


def _find_bounds(values: pa.Array) -> _Ends | None:
    if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
        return None
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]


def _join(one: _Ends, other: _Ends) -> _Ends:
    return min(one[0], other[0]), max(one[1], other[1])


def _format_least(value: object) -> str:
    return _format(value[:_MOST_CHARACTERS] if isinstance(value, str) else value)


def _format_most(value: object) -> str | None:
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        if value[_MOST_CHARACTERS] == _GREATEST:
            return None
        value = value[:_MOST_CHARACTERS] + _GREATEST
    elif isinstance(value, datetime) and value.microsecond % 1000:
        if value.year == MAXYEAR:
            return None
        value += _MILLISECOND
    return _format(value)


def _format(value: object) -> str:
    match value:
        case datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
            return json.dumps(f"{text}Z" if value.tzinfo else text)
        case date():
            return json.dumps(value.isoformat())
        case Decimal():
            return format(value, "f")
        case _:
            return json.dumps(value)
