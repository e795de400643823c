from __future__ import annotations

import time

import pytest

from cdc_core.capture import reporter
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.reporter import Reporter
from cdc_core.coordination.live import Figures
from cdc_core.vocabulary import Lsn
from tests.deadline import wait_for
from tests.fakes import FakeCoordination

NEVER_S = 3600.0


@pytest.fixture
def progress() -> CaptureProgress:
    return CaptureProgress(Lsn(100), Lsn(100), Lsn(500))


def start(progress: CaptureProgress, looks: list[Figures]) -> Reporter:
    return Reporter(FakeCoordination(), progress=progress, term=1, epoch=1, watch=looks.append)


def stage(progress: CaptureProgress, end_lsn: int) -> None:
    progress.record_staged(Lsn(end_lsn), rows=10, transactions=3, committed_at_us=1)


def test_what_was_staged_is_shown_without_waiting_for_the_next_look(
    progress: CaptureProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "_INTERVAL_S", NEVER_S)
    looks: list[Figures] = []
    showing = start(progress, looks)
    for batch in (1, 2):
        stage(progress, 100 + batch)
        wait_for(lambda: len(looks) == batch, 30.0, "the figures")  # noqa: B023 - waited for here.
        shown = looks[-1]
        assert shown.staged_lsn == str(Lsn(100 + batch))
        assert (shown.rows, shown.transactions, shown.batches) == (10 * batch, 3 * batch, batch)
    showing.finish()


def test_batches_staged_soon_after_each_other_are_shown_together(
    progress: CaptureProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "_SHORTEST_INTERVAL_S", NEVER_S)
    looks: list[Figures] = []
    showing = start(progress, looks)
    stage(progress, 101)
    wait_for(lambda: looks, 30.0, "the figures")
    for end_lsn in range(102, 200):
        stage(progress, end_lsn)
    showing.finish()
    assert [look.staged_lsn for look in looks] == [str(Lsn(101)), str(Lsn(199))]


def test_an_idle_run_is_looked_at_all_the_same(progress: CaptureProgress) -> None:
    looks: list[Figures] = []
    showing = start(progress, looks)
    wait_for(lambda: len(looks) >= 2, 30.0, "two looks")
    showing.finish()
    assert {look.staged_lsn for look in looks} == {str(Lsn(100))}


def test_wal_that_brings_nothing_is_no_lag(progress: CaptureProgress) -> None:
    looks: list[Figures] = []
    showing = start(progress, looks)
    stage(progress, 200)
    wait_for(lambda: looks and looks[-1].lag_seconds > 1000, 30.0, "the age of an old commit")
    progress.idle_at = time.time()
    wait_for(lambda: looks[-1].lag_seconds < 30, 30.0, "an idle capture to be current")
    assert looks[-1].lag_bytes == 300
    showing.finish()
