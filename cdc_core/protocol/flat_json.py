"""Reads flat JSON objects, the content of Walgate's marks: only texts and integers, by name.

Every role of a database may write a message with our prefix, so nothing here trusts the content.
Content of any other form gives None, never an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn, TypeAlias

Fields: TypeAlias = Mapping[str, str | int]

# Bytes. The largest mark is a watermark: two snapshots, each with the ids of all running
# transactions. 20,000 connections with ids of 20 digits need 840 kB.
MAX_BYTES = 1 << 20
_INT64 = 1 << 63


def parse_fields(content: bytes) -> Fields | None:
    """The fields of an object; None if the content is not a flat JSON object of bounded size."""
    if len(content) > MAX_BYTES:
        return None
    try:
        found = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_take_pairs,
            parse_constant=_refuse,
            parse_float=_refuse,
        )
    # Python raises ValueError for thousands of digits, RecursionError for deep nesting.
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _take_pairs(pairs: list[tuple[str, object]]) -> dict[str, str | int]:
    fields: dict[str, str | int] = {}
    for name, value in pairs:
        if name in fields or not _is_plain(name) or not isinstance(value, str | int):
            raise ValueError("not a flat object")
        is_in_range = _is_plain(value) if isinstance(value, str) else -_INT64 <= value < _INT64
        if isinstance(value, bool) or not is_in_range:
            raise ValueError("not a flat object")
        fields[name] = value
    return fields


def _is_plain(text: str) -> bool:
    """Whether PostgreSQL and Arrow can hold the text: it has no NUL and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refuse(_: str) -> NoReturn:
    raise ValueError("not a flat object")
