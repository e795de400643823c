"""F39: the receiver's clock jumps by a day, to and fro; what is staged does not depend on it.

Simulated inside the process, on every use of the wall clock by capture's threads.
"""

from __future__ import annotations

import threading
import time

import pytest

from cdc_core.capture.loop import Bound
from cdc_core.capture.run import run_capture
from cdc_core.coordination.live import Figures
from cdc_core.settings import load_settings
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline

DAY_S = 86_400


def wait_until_staged(pipeline: Pipeline, lsn: int) -> None:
    """Wait until the capture in this process has come to an LSN."""
    wait_for(lambda: pipeline.staged() >= lsn, DEADLINE_S, "it to be staged")


def wait_for_looks(seen: list[Figures], count: int) -> None:
    """Wait until the figures were shown so many times."""
    wait_for(lambda: len(seen) >= count, DEADLINE_S, "the figures to be shown")


def test_f39_a_clock_that_jumps_changes_nothing_but_what_is_shown(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = [0]
    clock, clock_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: clock() + jumps[-1])
    monkeypatch.setattr(time, "time_ns", lambda: clock_ns() + jumps[-1] * 1_000_000_000)
    pipeline.database.execute("create table orders (id bigserial primary key)")
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    stop, seen = threading.Event(), list[Figures]()
    capture = threading.Thread(
        target=run_capture, args=(settings, Bound(stop)), kwargs={"watch": seen.append}
    )
    capture.start()
    try:
        for jump_s in (DAY_S, -DAY_S, 0):
            jumps.append(jump_s)
            pipeline.database.execute("insert into orders default values")
            wait_until_staged(pipeline, pipeline.current_lsn())
            wait_for_looks(seen, len(seen) + 2)
    finally:
        stop.set()
        capture.join(DEADLINE_S)
    assert not capture.is_alive()
    assert min(figures.lag_seconds for figures in seen) >= 0
    assert len({figures.term for figures in seen}) == 1
    assert {figures.state for figures in seen} <= {"starting", "streaming", "draining", "stopped"}
    pipeline.catch_up()
    assert pipeline.require_truth() == 3
