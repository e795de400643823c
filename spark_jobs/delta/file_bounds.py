"""Computes the statistics of a Parquet file that Walgate writes, by which Delta skips files.

Each minimum and maximum is correct, but it may be wider than the values: timestamps are rounded
outwards to milliseconds, and long texts are cut. If a column has no minimum and maximum, conditions
on it never skip the file.

Source: the Delta protocol, section Per-file Statistics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import MAXYEAR, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Only so many columns have statistics, as by Delta's default. The NULLs of the columns in
# `_ALWAYS_COUNTED` are counted wherever these columns are.
_MAX_COLUMNS = 32
_ALWAYS_COUNTED = ("_raw", "_holes")
# Leaves in Parquet, each with its column. A leaf is NULL in the rows where its column is NULL.
_LEAVES = {"_raw.key_value.key": "_raw", "_holes.list.element": "_holes"}
_MAX_CHARACTERS = 32
# No character sorts after it.
_GREATEST = "\U0010ffff"
_MILLISECOND = timedelta(milliseconds=1)


# The minimum and maximum of one column, so both have one type.
_Ends: TypeAlias = tuple[Any, Any]


class ColumnStatistics:
    """Collects the statistics of the rows of one file."""

    def __init__(self, schema: pa.Schema) -> None:
        """Begin without rows."""
        bounded = schema.names[:_MAX_COLUMNS]
        self._bounded = [name for name in bounded if _has_order(schema.field(name).type)]
        self._nulls = dict.fromkeys([*bounded, *_ALWAYS_COUNTED], 0)
        # None if a value is NaN or infinite.
        self._known: dict[str, _Ends | None] = {}
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows to the statistics."""
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
        """Return the statistics as JSON."""
        return _format_statistics(self._rows, self._known, self._nulls)


def read_statistics(footer: pq.FileMetaData) -> str:
    """Read the statistics of a finished file from its footer; return them as JSON."""
    schema = footer.schema.to_arrow_schema()
    bounded = schema.names[:_MAX_COLUMNS]
    known: dict[str, _Ends | None] = {}
    nulls: dict[str, int] = {}
    for index, chunks in enumerate(_list_chunks(footer)):
        leaf = footer.schema.column(index).path
        if leaf in _LEAVES or leaf in bounded:
            count = _count_nulls(chunks)
            if count is not None:
                nulls[_LEAVES.get(leaf, leaf)] = count
        if leaf in bounded and _has_exact_ends(schema.field(leaf).type):
            known[leaf] = _join_chunks(chunks)
    return _format_statistics(footer.num_rows, known, nulls)


def is_reliable(end: object) -> bool:
    """Whether a minimum or maximum that delta-rs read from a table's log can be relied upon.

    delta-rs reads a character of four bytes wrongly if the writer escaped it. So a text must be
    ASCII, but for the last character of Unicode at the end of a text that was cut. Delta rounds
    timestamps, and numbers of other types may lose digits.
    """
    if isinstance(end, str):
        return end.removesuffix(_GREATEST).isascii()
    return type(end) is int


def _list_chunks(footer: pq.FileMetaData) -> list[list[pq.Statistics | None]]:
    """List the footer's statistics of each leaf, by row group."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return [[group.column(i).statistics for group in groups] for i in range(footer.num_columns)]


def _count_nulls(chunks: list[pq.Statistics | None]) -> int | None:
    known = [one for one in chunks if one is not None and one.has_null_count]
    return sum(int(one.null_count) for one in known) if len(known) == len(chunks) else None


def _join_chunks(chunks: list[pq.Statistics | None]) -> _Ends | None:
    """Return the minimum and maximum of a leaf in all row groups.

    None if they are not known, or if Python cannot hold them. A row group with only NULLs has none.
    """
    ends: _Ends = (None, None)
    for one in chunks:
        if one is None:
            return None
        if not one.has_min_max:
            if one.num_values:
                return None
            continue
        try:
            own = (one.min, one.max)
        except (ValueError, OverflowError):  # A date before year 1, say, or a cut character.
            return None
        ends = own if ends[0] is None else _join(ends, own)
    return ends


def _has_exact_ends(kind: pa.DataType) -> bool:
    """Whether Delta can take Parquet's minimum and maximum. For floats it cannot (NaN)."""
    return _has_order(kind) and not pa.types.is_floating(kind)


def _format_statistics(
    rows: int, known: Mapping[str, _Ends | None], nulls: Mapping[str, int]
) -> str:
    ends: list[dict[str, str]] = [{}, {}]
    for name, own in known.items():
        if own is None or own[0] is None:
            continue
        texts = [_format_least(own[0]), _format_most(own[1])]
        for end, text in zip(ends, texts, strict=True):
            if text is not None:
                end[name] = text
    least, most = map(_format_object, ends)
    return (
        f'{{"numRecords":{rows},"minValues":{least},"maxValues":{most},'
        f'"nullCount":{json.dumps(nulls)}}}'
    )


def _format_object(texts: Mapping[str, str]) -> str:
    named = (f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in texts.items())
    return "{" + ",".join(named) + "}"


def _has_order(kind: pa.DataType) -> bool:
    """Whether a minimum and a maximum of a type bound all values of a column."""
    kinds = pa.types
    ordered = (kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_temporal)
    # Delta itself writes no bounds of booleans, but delta-rs needs them: it takes a bound that is
    # missing as NULL, and a filter of its dataset then loses the rows of the file.
    return any(is_kind(kind) for is_kind in (*ordered, kinds.is_string, kinds.is_boolean))


def _find_bounds(values: pa.Array) -> _Ends | None:
    if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
        return None
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]


def _join(one: _Ends, other: _Ends) -> _Ends:
    return min(one[0], other[0]), max(one[1], other[1])


def _format_least(value: object) -> str:
    return _format(value[:_MAX_CHARACTERS] if isinstance(value, str) else value)


def _format_most(value: object) -> str | None:
    if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
        if value[_MAX_CHARACTERS] == _GREATEST:
            return None
        value = value[:_MAX_CHARACTERS] + _GREATEST
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
            # delta-rs reads an escaped character of four bytes as another one.
            return json.dumps(value, ensure_ascii=False)
