from __future__ import annotations

from dataclasses import replace

from cdc_core.coordination.live import Figures
from orchestration.capture.staging_reports import describe_staging

FIGURES = Figures(
    term=3,
    state="streaming",
    epoch=1,
    staged_lsn="0/20",
    current_lsn="0/30",
    lag_bytes=16,
    lag_seconds=0.5,
    rows_per_second=7.0,
    rows=100,
    transactions=10,
    batches=4,
    at=1000.0,
)


def test_the_first_report_tells_all_that_was_staged() -> None:
    told = describe_staging(FIGURES, None, version=8)
    assert (told["rows"], told["transactions"], told["batches"]) == (100, 10, 4)
    assert (told["rows_per_second"], told["delta_version"]) == (7.0, 8)
    assert (told["staged_lsn"], told["source_lsn"]) == ("0/20", "0/30")


def test_later_reports_tell_what_came_since() -> None:
    newer = replace(FIGURES, rows=400, transactions=11, batches=6, at=1010.0)
    told = describe_staging(newer, FIGURES, version=9)
    assert (told["rows"], told["transactions"], told["batches"]) == (300, 1, 2)
    assert told["rows_per_second"] == 30.0


def test_a_session_that_began_again_counts_again() -> None:
    again = replace(FIGURES, term=4, rows=5, transactions=1, batches=1, at=1010.0)
    told = describe_staging(again, FIGURES, version=9)
    assert (told["rows"], told["transactions"], told["batches"]) == (5, 1, 1)
    assert told["rows_per_second"] == 0.5
