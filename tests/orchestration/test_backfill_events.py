"""What a run tells Dagster of a backfill, and how often."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from cdc_core.backfill.results import BackfillProgress
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from orchestration.backfill import events
from orchestration.backfill.events import BackfillReports, Event
from orchestration.runs.keys import AssetKeys

TABLE = TableName("public", "notes")


class Telling:
    """Reports of one table, by a clock that stands still, and what they told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool = True) -> None:
        self.now = 100.0
        self.events: list[Event] = []
        monkeypatch.setattr(events, "read_clock", lambda: self.now)
        partitions = {TABLE: "public/notes"}
        self.reports = BackfillReports(
            self.events.append, partitions, key=AssetKeys().backfill, is_whole=is_whole
        )

    def tell(self, at: float, state: BackfillState, rows: int, **more: Any) -> None:
        self.now = 100.0 + at
        progress = BackfillProgress("b", state, rows=rows, rows_estimated=1000, chunks=3, **more)
        self.reports.tell(TABLE, progress)

    def read(self) -> list[tuple[Any, ...]]:
        names = ("state", "percent", "rows_per_second", "seconds_left")
        return [
            (type(one), *(getattr(one.metadata.get(name), "value", None) for name in names))
            for one in self.events
        ]


def test_progress_is_told_now_and_then_and_the_end_fills_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    telling = Telling(monkeypatch)
    for at, rows in ((0, 0), (5, 100), (14, 150), (15, 300), (20, 500), (31, 1500)):
        telling.tell(at, BackfillState.BEGUN, rows)
    telling.tell(40, BackfillState.DONE, 2000)
    seen, made = dg.AssetObservation, dg.AssetMaterialization
    assert telling.read() == [
        (seen, "running", 30, 20.0, 35.0),
        # An estimate that was too low.
        (seen, "running", 99, 48.4, 0.0),
        (made, "done", 100, 50.0, None),
    ]
    assert {one.partition for one in telling.events} == {"public/notes"}
    assert [one.description for one in telling.events] == [
        "public.notes: running, 300 rows (30 %) in 3 chunks at 20 rows/s",
        "public.notes: running, 1,500 rows (99 %) in 3 chunks at 48 rows/s",
        "public.notes: done, 2,000 rows (100 %) in 3 chunks at 50 rows/s",
    ]


def test_another_state_is_told_at_once_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    telling = Telling(monkeypatch, is_whole=False)
    telling.tell(0, BackfillState.BEGUN, 0)
    telling.tell(1, BackfillState.HELD, 10, reason="the slot is behind")
    telling.tell(2, BackfillState.RUNNING, 10)
    telling.tell(3, BackfillState.DONE, 900)
    assert [state for _, state, *_ in telling.read()] == ["held", "running", "done"]
    assert telling.events[0].metadata["reason"].value == "the slot is behind"
    # A part of a table fills nothing.
    assert {type(one) for one in telling.events} == {dg.AssetObservation}


def test_rows_of_an_earlier_run_are_not_of_this_ones_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    telling = Telling(monkeypatch)
    telling.tell(0, BackfillState.RESUMED, 0)
    telling.tell(1, BackfillState.RESUMED, 400, rows_before=400)
    telling.tell(20, BackfillState.RESUMED, 600, rows_before=400)
    assert telling.read()[-1][1:] == ("running", 60, 10.0, 40.0)
