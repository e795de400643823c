"""A capture waits for its slot while another writes an epoch, or while the log is removed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import open_log, run_capture
from cdc_core.errors import StagingError, WrongServer
from cdc_core.settings import Settings
from cdc_core.staging.epochs import Epoch, read_newest_epoch
from cdc_core.staging.log import Log
from cdc_core.staging.subscriptions import Subscription
from tests.fix_pipeline import Pipeline
from tests.recover.recovering import change, fill, read_settings
from tests.truth import read_log


@pytest.fixture
def filled(pipeline: Pipeline) -> Pipeline:
    """Lend a pipeline with something in its log, and changes that are not staged yet."""
    fill(pipeline)
    change(pipeline)
    return pipeline


class WatchedLog(Log):
    """A log that something happens to after capture has read its epoch for the first time."""

    def __init__(self, settings: Settings, happen: Callable[[], None]) -> None:
        subscription = Subscription.of(settings.source)
        super().__init__(settings.lake.root, spool=settings.lake.spool, subscription=subscription)
        self._happen: Callable[[], None] | None = happen

    def read_epoch(self) -> Epoch | None:
        epoch = super().read_epoch()
        if self._happen is not None:
            happen, self._happen = self._happen, None
            happen()
        return epoch


def capture_while(pipeline: Pipeline, happen: Callable[[], None]) -> None:
    """Run a capture; something happens between its first look at the log and its slot."""
    settings = read_settings(pipeline)
    waiting = [WatchedLog(settings, happen)]

    def open_watched(settings: Settings) -> Log:
        if waiting:
            return waiting.pop()
        opened = open_log(settings)
        assert isinstance(opened, Log)
        return opened

    bound = RunLimit(threading.Event(), until_current=True)
    run_capture(settings, bound, open_log=open_watched)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"epoch": 2, "system_id": "7"}, "system identifier"),
        ({"timeline": 2}, "timeline 1, staging was filled from timeline 2"),
    ],
    ids=["of another server", "of a promoted server"],
)
def test_an_epoch_that_was_written_meanwhile_is_compared_with_the_server(
    filled: Pipeline, found: dict[str, object], said: str
) -> None:
    epoch = read_newest_epoch(filled.lake)
    assert epoch is not None
    held = read_log(filled.root)
    settings = read_settings(filled)
    staged = Log.of(settings).read_staged(epoch)
    other = replace(epoch, first_lsn=staged, **found)  # type: ignore[arg-type]

    def write_epoch() -> None:
        Log.of(settings).begin_epoch(other)

    with pytest.raises(WrongServer, match=said):
        capture_while(filled, write_epoch)
    assert read_log(filled.root) == held
    assert read_newest_epoch(filled.lake) == other


def test_a_log_that_was_removed_meanwhile_is_not_begun_again(filled: Pipeline) -> None:
    confirmed = filled.slot_facts()["confirmed"]
    with pytest.raises(StagingError, match="cannot open changes"):
        capture_while(filled, lambda: shutil.rmtree(filled.root))
    with pytest.raises(StagingError, match="the log is gone from"):
        run_capture(read_settings(filled), RunLimit(threading.Event(), until_current=True))
    assert filled.slot_facts()["confirmed"] == confirmed


def test_a_recovery_that_finished_meanwhile_is_gone_on_from(filled: Pipeline) -> None:
    epoch = read_newest_epoch(filled.lake)
    assert epoch is not None
    settings = read_settings(filled)
    staged = Log.of(settings).read_staged(epoch)
    other = replace(epoch, epoch=2, first_lsn=staged)

    def write_epoch() -> None:
        Log.of(settings).begin_epoch(other)

    capture_while(filled, write_epoch)
    newest = read_newest_epoch(filled.lake)
    assert newest == other
    settled = Log.of(settings)
    assert settled.read_staged(other) > other.first_lsn
    assert settled.read_staged(epoch) == other.first_lsn, "nothing more is staged in the old epoch"
