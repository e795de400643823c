"""F7: the thread that tells the server what is staged dies; the run ends and gives the slot up.

The death is simulated inside the process: its code has no way to fail but the connection's.
"""

from __future__ import annotations

import threading
import time

import pytest

from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import run_capture
from cdc_core.settings import load_settings
from cdc_core.source.replication import ReplicationStream
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline

ROWS = 3
AT_ONCE_S = 15.0


class BrokenThreadError(Exception):
    """What nobody foresaw."""


def test_f07_the_death_of_the_status_thread_ends_the_run(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.database.execute("create table orders (id bigserial primary key)")
    settings = load_settings(pipeline.folder / "walgate.toml", {})

    def fail(*_: object) -> None:
        raise BrokenThreadError

    monkeypatch.setattr(ReplicationStream, "send_status", fail)
    for _ in range(ROWS):
        pipeline.database.execute("insert into orders default values")
    started = time.monotonic()
    with pytest.raises(BrokenThreadError):
        run_capture(settings, RunLimit(threading.Event()))
    assert time.monotonic() - started < AT_ONCE_S, "it was the silence that was noticed"
    wait_for(lambda: pipeline.slot_facts()["pid"] is None, DEADLINE_S, "the slot to be free")
    monkeypatch.undo()
    pipeline.catch_up()
    assert pipeline.require_truth() == ROWS
