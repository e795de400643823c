"""Which runs of other hosts are given up: those that were seen without a sign of life for long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from orchestration.runs.hosting import ALIVE_TAG, WORKER_TAG, format_worker
from orchestration.runs.pipeline_runs import PIPELINE_TAG, PipelineRuns
from orchestration.runs.relaunch import Abandon, RunRecord, Skip, decide_on_active, read_runs
from orchestration.runs.signs_of_life import Listener
from orchestration.stack.draining import record_left

ELSEWHERE = "a1b2c3d4e5f6 17 boot 100"
Status = dg.DagsterRunStatus


class Clock:
    """Seconds that only grow, as a test lets them pass."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Watch:
    """A listener that looks once a minute."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.listener = Listener(self.clock)

    def look(self, signs: dict[str, str], *, minutes: int = 1) -> set[str]:
        silent: set[str] = set()
        for _ in range(minutes):
            self.clock.now += 60
            silent = self.listener.find_silent(signs)
        return silent


def test_a_run_is_silent_after_a_quarter_of_an_hour_without_another_sign() -> None:
    watch = Watch()
    assert watch.look({"a": "12:00"}, minutes=15) == set()
    assert watch.look({"a": "12:00"}) == {"a"}
    assert watch.look({"a": "12:01"}) == set()


def test_a_run_whose_signs_change_is_never_silent_whatever_they_say() -> None:
    """Its clock may be set while it runs, and need not agree with any other."""
    watch = Watch()
    for sign in ("12:00", "2090", "2090", "1970", "12:01") * 10:
        assert watch.look({"a": sign}, minutes=5) == set()


def test_a_time_without_looks_is_no_silence() -> None:
    """The instance was down: the run could not write its sign, and nobody could look."""
    watch = Watch()
    watch.look({"a": "12:00"}, minutes=5)
    watch.clock.now += 7200
    assert watch.look({"a": "12:00"}, minutes=5) == set()


def test_each_run_is_listened_to_for_itself() -> None:
    watch = Watch()
    watch.look({"a": "12:00"}, minutes=10)
    assert watch.look({"a": "12:00", "b": "12:09"}, minutes=6) == {"a"}
    assert watch.look({"b": "12:09"}, minutes=10) == {"b"}
    assert watch.look({"a": "12:00"}) == set()


def make_run(worker: str | None, **facts: Any) -> RunRecord:
    return RunRecord("00000001-run", Status.STARTED, worker, None, 0.0, None, **facts)


def test_a_silent_run_of_another_host_is_given_up() -> None:
    decision = decide_on_active([make_run(ELSEWHERE, is_silent=True)], doing="verifies", now=0)
    assert decision == Abandon("00000001-run", "the worker of run 00000001 is gone")
    assert isinstance(decide_on_active([make_run(ELSEWHERE)], doing="verifies", now=0), Skip)


def test_a_run_of_this_host_is_judged_by_its_process_alone() -> None:
    run = make_run(format_worker(os.getpid()), is_silent=True)
    assert isinstance(decide_on_active([run], doing="verifies", now=0), Skip)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Lend an instance of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@dg.op
def rest() -> None:
    """Do nothing."""


@dg.job
def quiet() -> None:
    rest()


def add_run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus = Status.STARTED, **tags: str
) -> str:
    known = {"worker": WORKER_TAG, "alive": ALIVE_TAG, "pipeline": PIPELINE_TAG}
    labels = {known[name]: value for name, value in tags.items() if value}
    location = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="m"), "m")
    return instance.create_run_for_job(
        quiet,
        status=status,
        tags=labels,
        # No run is queued without an origin.
        remote_job_origin=RemoteJobOrigin(RemoteRepositoryOrigin(location, "r"), quiet.name),
        job_code_origin=JobPythonOrigin(
            quiet.name,
            RepositoryPythonOrigin("python", ModuleCodePointer("m", "f"), None, None, {}),
        ),
    ).run_id


def test_runs_are_read_with_what_was_heard_of_them(instance: dg.DagsterInstance) -> None:
    silent = add_run(instance, worker=ELSEWHERE, alive="12:00")
    # A run of an earlier version of the code shows no sign: nothing can be made of its silence.
    unheard = add_run(instance, worker=ELSEWHERE)
    watch = Watch()

    def look() -> dict[str, bool]:
        watch.clock.now += 60
        runs = read_runs(instance, PipelineRuns({}), "quiet", listener=watch.listener)
        return {run.run_id: run.is_silent for run in runs}

    for _ in range(15):
        assert look() == {silent: False, unheard: False}
    assert look() == {silent: True, unheard: False}
    instance.add_run_tags(silent, {ALIVE_TAG: "12:16"})
    assert look() == {silent: False, unheard: False}


def test_a_stack_records_as_failed_what_an_earlier_one_left(instance: dg.DagsterInstance) -> None:
    """Its container was made again: the host that signed its runs is no more."""
    left = [
        add_run(instance, status, worker=worker, pipeline="own")
        for status in (Status.STARTED, Status.STARTING, Status.CANCELING)
        for worker in (ELSEWHERE, "")
    ]
    # One waits for the next stack, one is worked on beside it, one is another pipeline's.
    kept = [
        add_run(instance, Status.QUEUED, pipeline="own"),
        add_run(instance, worker=format_worker(os.getpid()), pipeline="own"),
        add_run(instance, worker=ELSEWHERE, pipeline="another"),
    ]
    record_left(instance, PipelineRuns({PIPELINE_TAG: "own"}))
    found = {run.run_id: run.status for run in instance.get_runs()}
    assert {found[run] for run in left} == {Status.FAILURE}
    assert [found[run] for run in kept] == [Status.QUEUED, Status.STARTED, Status.STARTED]
