"""Sizes and durations as people write them: `64MB`, `30s`, `5min`.

Units are those of PostgreSQL's own configuration: kB, MB, GB, TB (powers of 1024); ms, s, min, h,
d. A bare number is bytes, or seconds.
"""

from __future__ import annotations

import re

_SIZE_UNITS = {"": 1, "B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\Z")


def parse_size(value: object) -> int:
    """Read a size in bytes. Raises: ValueError if it is not a positive size."""
    number, unit = _split_quantity(value)
    if unit not in _SIZE_UNITS:
        raise ValueError("expected a size in B, kB, MB, GB or TB such as 64MB")
    size = int(number * _SIZE_UNITS[unit])
    if size <= 0:
        raise ValueError("expected a size above zero such as 64MB")
    return size


def parse_duration(value: object) -> float:
    """Read a duration in seconds; it may be zero. Raises: ValueError if it is not a duration."""
    number, unit = _split_quantity(value)
    if unit not in _SECONDS:
        raise ValueError("expected a duration in ms, s, min, h or d such as 30s")
    return number * _SECONDS[unit]


def format_size(size: int) -> str:
    """Write bytes in the largest unit that leaves a number of at least 1: `1.5GB`."""
    for unit in ("TB", "GB", "MB", "kB"):
        if size >= _SIZE_UNITS[unit]:
            return f"{size / _SIZE_UNITS[unit]:.1f}".removesuffix(".0") + unit
    return f"{size}B"


def _split_quantity(value: object) -> tuple[float, str]:
    """Split into number and unit. Raises: ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise ValueError("expected a number that is not negative")
        return float(value), ""
    match = _QUANTITY.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a number, or a number with its unit such as 64MB or 30s")
    return float(match[1]), match[2]
