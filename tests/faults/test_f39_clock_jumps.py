"""F39: the receiver's clock jumps at every reading; what is staged does not depend on it, nor when.

Simulated inside the process, on every use of the wall clock by capture's threads: a day on each
time, then a day back each time. So no span of time that is taken from it is ever what it was.
"""

from __future__ import annotations

import logging
import threading
import time

import pytest

from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import run_capture
from cdc_core.coordination.live import Figures
from cdc_core.settings import load_settings
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline

DAY_S = 86_400
# Longer than a second, so that a look at the figures falls between a write and its mark.
HEARTBEAT = {"WALGATE_CAPTURE__HEARTBEAT_SECONDS": "1.5"}
# By other means than its own clock a capture that is late is late by its heartbeat.
LATE_S = 20.0


class JumpingClock:
    """The wall clock, further off by `step_s` with every reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the real one; it does not jump yet."""
        self.step_s = 0
        self._off_s = 0
        self._read, self._read_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: self._read() + self._jump())
        monkeypatch.setattr(time, "time_ns", lambda: self._read_ns() + self._jump() * 10**9)

    def _jump(self) -> int:
        self._off_s += self.step_s
        return self._off_s


def wait_until_staged(pipeline: Pipeline, lsn: int) -> None:
    """Wait until the capture in this process has come to an LSN."""
    wait_for(lambda: pipeline.staged() >= lsn, LATE_S, "it to be staged")


def test_f39_a_clock_that_jumps_changes_nothing_but_what_is_shown(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = JumpingClock(monkeypatch)
    database = pipeline.database
    database.execute("create table orders (id bigserial primary key)")
    settings = load_settings(pipeline.folder / "walgate.toml", HEARTBEAT)
    stop, seen = threading.Event(), list[Figures]()
    capture = threading.Thread(
        target=run_capture, args=(settings, RunLimit(stop)), kwargs={"watch": seen.append}
    )
    with caplog.at_level(logging.INFO, "walgate.capture"):
        capture.start()
        try:
            for clock.step_s in (DAY_S, -DAY_S, 0):
                database.execute("insert into orders default values")
                wait_until_staged(pipeline, pipeline.current_lsn())
                looks = len(seen)
                # Of another database: only the heartbeat's mark moves the slot past it.
                other = "select pg_logical_emit_message(true, 'other', repeat('x', 50000))"
                database.server.execute("postgres", other)
                wait_until_staged(pipeline, pipeline.current_lsn())
                assert any(figures.lag_bytes for figures in seen[looks:]), "no lag was looked at"
        finally:
            stop.set()
            capture.join(DEADLINE_S)
    assert not capture.is_alive()
    assert min(figures.lag_seconds for figures in seen) >= 0
    assert {figures.state for figures in seen} <= {"starting", "streaming", "draining", "stopped"}
    said = [record.getMessage() for record in caplog.records]
    assert said.count("capture started") == 1
    assert not {"session ended", "slot retains WAL"} & {*said}
    monkeypatch.undo()
    pipeline.catch_up()
    assert pipeline.require_truth() == 3
