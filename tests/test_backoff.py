from __future__ import annotations

import pytest

from cdc_core.backoff import Backoff


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (Backoff(first_s=0.5, max_s=30.0), [0, 0.5, 1, 2, 4, 8, 16, 30, 30]),
        (Backoff(first_s=0.25, max_s=4.0), [0, 0.25, 0.5, 1, 2, 4, 4]),
        (Backoff(first_s=5.0, max_s=300.0, immediate=1), [0, 0, 5, 10, 20, 40, 80, 160, 300, 300]),
        (Backoff(first_s=2.0, max_s=2.0), [0, 2, 2]),
    ],
)
def test_pauses_double_up_to_the_longest(backoff: Backoff, pauses: list[float]) -> None:
    assert [backoff.pause_after(failures) for failures in range(len(pauses))] == pauses


def test_what_fails_for_days_still_has_its_pause() -> None:
    assert Backoff(first_s=0.5, max_s=30.0).pause_after(1_000_000) == 30.0
