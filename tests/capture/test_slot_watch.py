"""What the slot watch says, and when: each level once, and at once where nothing is staged."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from cdc_core.capture import slot_watch
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.slot_watch import SlotWatch
from cdc_core.source.retention import Retention
from cdc_core.vocabulary import Lsn


@pytest.fixture
def progress() -> CaptureProgress:
    return CaptureProgress(Lsn(0), Lsn(0), Lsn(0), idle_at=time.time())


def see(watch: SlotWatch, *percents: int) -> None:
    for percent in percents:
        watch.look(Retention("s", percent, 100, "reserved", None, None))


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    """Give what was said, and the level or the reason."""
    found = [(record.getMessage(), vars(record)["fields"]) for record in caplog.records]
    return [
        (message, fields.get("reason", fields.get("level_percent"))) for message, fields in found
    ]


def test_each_level_is_said_once_and_the_way_down_too(
    progress: CaptureProgress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    see(SlotWatch(progress), 10, 49, 51, 60, 51, 76, 74, 77, 95, 10, 10, 51)
    levels = [("slot retains WAL", level) for level in (50, 75, 90)]
    assert said(caplog) == [*levels, ("slot drained", None), levels[0]]


def test_a_level_is_said_again_after_a_while(
    progress: CaptureProgress, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_watch, "_SAY_AGAIN_S", 0.0)
    see(SlotWatch(progress), 51, 51)
    assert len(said(caplog)) == 2


def test_storage_that_refuses_is_said_at_once_below_every_level(
    progress: CaptureProgress, caplog: pytest.LogCaptureFixture
) -> None:
    progress.storage_error = "no space"
    see(SlotWatch(progress), 1, 1)
    assert said(caplog) == [("slot retains WAL", "the log cannot be written")]


def test_storage_that_hangs_is_said_and_an_idle_source_is_not(
    progress: CaptureProgress, caplog: pytest.LogCaptureFixture
) -> None:
    watch = SlotWatch(progress)
    progress.staged_at = time.monotonic() - 45.0
    see(watch, 1)
    assert said(caplog) == []
    progress.idle_at = time.time() - 60.0
    see(watch, 1)
    assert said(caplog) == [("slot retains WAL", "nothing staged for 45 s")]
