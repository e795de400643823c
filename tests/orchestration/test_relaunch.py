from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_core import process_start
from orchestration.runs.hosting import RETRY_TAG, WORKER_TAG, format_worker, is_worker_gone
from orchestration.runs.pipeline_runs import PipelineRuns
from orchestration.runs.relaunch import (
    Abandon,
    Launch,
    RunRecord,
    Skip,
    decide_on_active,
    decide_on_launch,
    read_runs,
)

NOW = 1_000_000.0
Status = dg.DagsterRunStatus


def make_run(number: int, status: dg.DagsterRunStatus, **facts: Any) -> RunRecord:
    known: dict[str, Any] = {"worker": None, "retry": None}
    known |= {"started_at": NOW - 60, "ended_at": NOW - 1}
    return RunRecord(f"{number:08}-run", status, **(known | facts))


@pytest.fixture(scope="module")
def gone() -> str:
    """Lend the signature of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    signature = format_worker(child.pid)
    child.communicate()
    return signature


@pytest.fixture(scope="module")
def alive() -> str:
    """Lend the signature of a process that lives."""
    return format_worker(os.getpid())


def test_the_first_run_is_launched_once() -> None:
    assert decide_on_active([], doing="streams", now=NOW) is None
    assert decide_on_launch([], now=NOW) == Launch("first")


def test_each_run_has_one_follower() -> None:
    runs = [make_run(2, Status.SUCCESS), make_run(1, Status.SUCCESS)]
    assert decide_on_launch(runs, now=NOW) == Launch("after:00000002-run")


def test_a_cancelled_run_is_followed_at_once() -> None:
    assert isinstance(decide_on_launch([make_run(1, Status.CANCELED)], now=NOW), Launch)


@pytest.mark.parametrize(
    "status", [Status.QUEUED, Status.STARTING, Status.STARTED, Status.CANCELING]
)
def test_an_active_run_is_waited_for(status: dg.DagsterRunStatus, alive: str) -> None:
    decision = decide_on_active(
        [make_run(1, status, worker=alive)], doing="streams at 0/1", now=NOW
    )
    assert isinstance(decision, Skip)
    expected = "is draining" if status is Status.CANCELING else "streams at 0/1"
    assert expected in decision.reason


def test_a_run_whose_worker_was_killed_is_given_up(gone: str) -> None:
    decision = decide_on_active(
        [make_run(1, Status.STARTED, worker=gone)], doing="streams", now=NOW
    )
    assert decision == Abandon("00000001-run", "the worker of run 00000001 is gone")


def test_a_run_in_the_queue_does_not_hide_a_killed_one(gone: str) -> None:
    runs = [make_run(2, Status.QUEUED), make_run(1, Status.STARTED, worker=gone)]
    decision = decide_on_active(runs, doing="streams", now=NOW)
    assert isinstance(decision, Abandon)
    assert decision.run_id == "00000001-run"


def test_a_worker_of_another_host_is_taken_to_live() -> None:
    assert not is_worker_gone("another.host 1 boot 100")


def test_a_recycled_process_id_is_no_worker(alive: str) -> None:
    assert is_worker_gone(f"{alive}1")


def test_a_worker_is_known_again_after_the_clock_was_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel moves the time of the boot with the clock; psutil counts starts from it."""
    process = os.getpid()
    (tmp_path / str(process)).mkdir()
    shutil.copy(f"/proc/{process}/stat", tmp_path / str(process) / "stat")
    monkeypatch.setattr(process_start, "_PROC", tmp_path)
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    (tmp_path / "stat").write_text("btime 1700000000\n")
    worker = format_worker(process)
    (tmp_path / "stat").write_text("btime 1700000001\n")
    assert not is_worker_gone(worker)


def test_a_run_that_never_signed_is_given_up_in_the_end() -> None:
    young = make_run(1, Status.STARTED, started_at=NOW - 100)
    old = make_run(1, Status.STARTED, started_at=NOW - 200)
    assert isinstance(decide_on_active([young], doing="", now=NOW), Skip)
    assert isinstance(decide_on_active([old], doing="", now=NOW), Abandon)


def test_pauses_grow_with_failures_and_end_with_a_success() -> None:
    waited = []
    for failures in range(1, 9):
        runs = [make_run(n, Status.FAILURE, ended_at=NOW) for n in range(failures, 0, -1)]
        seconds = 0.0
        while isinstance(decide_on_launch(runs, now=NOW + seconds), Skip):
            seconds += 5
        waited.append(seconds)
    assert waited == [0, 5, 10, 20, 40, 80, 160, 300]
    cured = [make_run(9, Status.SUCCESS), make_run(8, Status.FAILURE, ended_at=NOW)]
    assert isinstance(decide_on_launch(cured, now=NOW), Launch)


def test_what_needs_a_person_is_not_tried_again_soon() -> None:
    runs = [make_run(1, Status.FAILURE, retry="AFTER_FIX", ended_at=NOW)]
    decision = decide_on_launch(runs, now=NOW + 290)
    assert isinstance(decision, Skip)
    assert "needs a person" in decision.reason
    assert isinstance(decide_on_launch(runs, now=NOW + 301), Launch)


def test_a_failure_dated_far_ahead_keeps_nothing_waiting() -> None:
    """A clock that was ahead and came back has dated a run: its pause would end in a year."""
    ahead = NOW + 365 * 86_400
    wrong = [make_run(1, Status.FAILURE, ended_at=ahead)]
    assert isinstance(decide_on_launch(wrong, now=NOW), Launch)
    # What it launches is dated well again, and its failures have their pauses.
    runs = [make_run(2, Status.FAILURE, ended_at=NOW), *wrong]
    assert isinstance(decide_on_launch(runs, now=NOW + 4), Skip)
    assert isinstance(decide_on_launch(runs, now=NOW + 6), Launch)


def test_a_failure_dated_a_little_ahead_by_another_host_has_its_pause() -> None:
    runs = [make_run(n, Status.FAILURE, ended_at=NOW + 60) for n in (3, 2, 1)]
    assert isinstance(decide_on_launch(runs, now=NOW), Skip)
    assert isinstance(decide_on_launch(runs, now=NOW + 71), Launch)


def test_a_run_that_never_signed_and_started_far_ahead_is_given_up() -> None:
    run = make_run(1, Status.STARTED, started_at=NOW + 365 * 86_400)
    assert isinstance(decide_on_active([run], doing="", now=NOW), Abandon)
    run = make_run(1, Status.STARTED, started_at=NOW + 60)
    assert isinstance(decide_on_active([run], doing="", now=NOW), Skip)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Lend an instance of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def test_runs_are_read_newest_first_with_what_they_were_signed(
    instance: dg.DagsterInstance, alive: str
) -> None:
    for _ in range(3):
        _job().execute_in_process(instance=instance)
    newest = instance.get_runs(limit=1)[0]
    instance.add_run_tags(newest.run_id, {WORKER_TAG: alive, RETRY_TAG: "LATER"})
    runs = read_runs(instance, PipelineRuns({}), "quiet")
    assert [run.status for run in runs] == [Status.SUCCESS] * 3
    assert (runs[0].run_id, runs[0].worker, runs[0].retry) == (newest.run_id, alive, "LATER")
    assert runs[0].ended_at is not None
    assert read_runs(instance, PipelineRuns({}), "another") == []


def _job() -> dg.JobDefinition:
    @dg.op
    def rest() -> None:
        """Do nothing."""

    @dg.job
    def quiet() -> None:
        rest()

    return quiet
