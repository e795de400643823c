"""A point of the log, as people write it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from cdc_core.read_point import ReadPoint, parse_read_point
from cdc_core.vocabulary import Lsn

SECOND = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("latest", "latest"),
        ("live", "live"),
        ("16/B374D848", Lsn(0x16_B374_D848)),
        ("2026-01-01T00:00:01", SECOND),
        ("2026-01-01 01:00:01+01:00", SECOND),
        ("20260101T000001Z", SECOND),
        ("2026-01-01", SECOND.replace(second=0)),
    ],
)
def test_each_form_is_read_and_a_time_without_an_offset_is_utc(
    text: str, point: ReadPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        found = parse_read_point(text)
    time.tzset()
    assert found == point


@pytest.mark.parametrize(
    "text", ["yesterday", "Latest", "16/", "2026-13-01", "0001-01-01T00:00+14:00", ""]
)
def test_anything_else_names_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="expected latest, live, an LSN such as"):
        parse_read_point(text)
