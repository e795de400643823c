"""H13: a capture is paused with a batch in hand, another takes over, the first goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline


@pytest.fixture
def paused(pipeline: Pipeline, tmp_path: Path) -> ChildProcess:
    """Lend a capture that was stopped right before a commit, its walsender gone."""
    database, hold = pipeline.database, tmp_path / "hold"
    database.execute(f"alter database {database.name} set wal_sender_timeout = '1s'")
    database.execute("create table orders (id bigint primary key, note text)")
    child = pipeline.start_streaming(WALGATE_HOLD_AT=f"before_delta_commit={hold}")
    database.execute("insert into orders values (1, 'landed')")
    pipeline.wait_until_staged(pipeline.current_lsn())
    hold.touch()
    database.execute("insert into orders values (2, 'in hand')")
    pipeline.wait_for_unnamed_part()
    child.send(signal.SIGSTOP)
    hold.unlink()
    wait_for(lambda: pipeline.slot_facts()["pid"] is None, DEADLINE_S, "the slot to be free")
    return child


def test_history_13_a_paused_capture_lands_nothing_once_its_successor_has_committed(
    pipeline: Pipeline, paused: ChildProcess
) -> None:
    late = pipeline.unnamed_parts()
    successor = pipeline.start_streaming()
    pipeline.database.execute("insert into orders values (3, 'by the successor')")
    pipeline.wait_until_staged(pipeline.current_lsn())
    paused.send(signal.SIGCONT)
    assert paused.wait(DEADLINE_S) == 3, paused.output()
    assert late <= pipeline.unnamed_parts()
    pipeline.database.execute("insert into orders values (4, 'later')")
    pipeline.finish(successor)
    pipeline.catch_up()
    assert pipeline.require_truth() == 4


def test_history_13_what_a_paused_capture_lands_first_is_found_and_not_repeated(
    pipeline: Pipeline, paused: ChildProcess, tmp_path: Path
) -> None:
    late = pipeline.unnamed_parts()
    hold = tmp_path / "hold-successor"
    hold.touch()
    successor = pipeline.start_streaming(WALGATE_HOLD_AT=f"before_delta_commit={hold}")
    wait_for(lambda: len(pipeline.unnamed_parts()) > 1, DEADLINE_S, "the successor's part")
    paused.send(signal.SIGCONT)
    wait_for(lambda: not late & pipeline.unnamed_parts(), DEADLINE_S, "the late batch to land")
    hold.unlink()
    pipeline.wait_for_line(successor, "another writer committed")
    # The slot is free for a moment and either may take it; the other one stops.
    captures = [paused, successor]
    wait_for(lambda: any(not c.is_running for c in captures), DEADLINE_S, "one to give up")
    (stopped,) = [child for child in captures if not child.is_running]
    (going_on,) = [child for child in captures if child.is_running]
    assert stopped.wait() == 3, stopped.output()
    pipeline.database.execute("insert into orders values (3, 'later')")
    pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(going_on)
    assert pipeline.require_truth() == 3
