"""The point of the log at which a query reads: `latest`, `live`, an LSN or a time. Pure.

`latest` is the newest cut, `live` is the end of the log. A time selects every transaction whose log
time is at or before it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, TypeAlias

from cdc_core.vocabulary import Lsn

ReadPoint: TypeAlias = Literal["latest", "live"] | Lsn | datetime

_EXPECTED = "expected latest, live, an LSN such as 16/B374D848, or a time such as 2026-03-01T12:00Z"


def parse_read_point(text: str) -> ReadPoint:
    """Read a point. A time is in ISO 8601, and in UTC if it has no offset. Raises: ValueError."""
    if text == "latest":
        return "latest"
    if text == "live":
        return "live"
    for parse in (Lsn.parse, _parse_time):
        try:
            return parse(text)
        except (ValueError, OverflowError):
            continue
    raise ValueError(f"{text!r} is not a point of the log: {_EXPECTED}")


def _parse_time(text: str) -> datetime:
    return put_in_utc(datetime.fromisoformat(text))


def put_in_utc(time: datetime) -> datetime:
    """The same time in UTC; without an offset it is in UTC already. Raises: OverflowError."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
