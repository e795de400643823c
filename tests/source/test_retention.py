"""What a slot holds back, judged: the nearer of two ends counts, and growth is of the present."""

from __future__ import annotations

import pytest

from cdc_core.source.retention import Growth, Retention, format_span


def retain(retained: int, *, budget: int = 1000, safe: int | None = None) -> Retention:
    return Retention("s", retained, budget, "reserved", safe, None)


@pytest.mark.parametrize(
    ("percent", "level"), [(0, 0), (49, 0), (50, 50), (74, 50), (75, 75), (89, 75), (90, 90)]
)
def test_levels_are_reached_at_their_share(percent: int, level: int) -> None:
    assert retain(10 * percent).level == level


def test_past_its_budget_nothing_is_left() -> None:
    over = retain(2500)
    assert (over.left_bytes, over.used_percent, over.level) == (0, 250.0, 90)
    assert over.seconds_left(None) == 0.0


def test_a_server_that_gives_up_sooner_decides() -> None:
    close = retain(300, safe=100)
    assert (close.left_bytes, close.used_percent, close.level) == (100, 75.0, 75)
    assert close.seconds_left(10.0) == 10.0
    assert retain(300, safe=-5).seconds_left(10.0) == 0.0


def test_a_slot_that_does_not_grow_has_all_the_time() -> None:
    assert retain(300).seconds_left(0.0) is None
    assert retain(300).seconds_left(-3.0) is None
    assert retain(300).seconds_left(None) is None


def test_growth_is_that_of_the_last_minute() -> None:
    growth = Growth()
    assert growth.rate is None
    growth.add(0.0, 0)
    assert growth.rate is None
    for second in range(1, 600):
        growth.add(float(second), 0)
    for second in range(600, 661):
        growth.add(float(second), 7 * (second - 599))
    assert growth.rate == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(40.4, "40 s"), (720, "12 min"), (12600, "3.5 h"), (518400, "6 d")]
)
def test_spans_are_written_as_people_do(seconds: float, text: str) -> None:
    assert format_span(seconds) == text
