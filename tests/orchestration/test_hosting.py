import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from cdc_core.errors import Retry, StagingError
from orchestration.runs import hosting
from orchestration.runs.hosting import (
    ALIVE_TAG,
    MAX_RUNTIME_TAG,
    RETRY_TAG,
    WORKER_TAG,
    host_loop,
    is_worker_gone,
)
from tests.deadline import wait_for

DEADLINE_S = 60.0


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Lend an instance of its own, on disk: the loop's thread reads beside the run's.

    An ephemeral instance has one SQLite connection, which two threads cannot use at once.
    """
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def run_hosted(
    instance: dg.DagsterInstance,
    work: Callable[[threading.Event], None],
    *,
    most_s: float | None = None,
) -> dg.ExecuteInProcessResult:
    @dg.op
    def host(context: dg.OpExecutionContext) -> None:
        host_loop(context, work, most_s=most_s)

    @dg.job(executor_def=dg.in_process_executor)
    def hosting() -> None:
        host()

    return hosting.execute_in_process(instance=instance, raise_on_error=False)


def read_tags(instance: dg.DagsterInstance) -> dict[str, str]:
    return dict(instance.get_runs(limit=1)[0].tags)


def read_failure(result: dg.ExecuteInProcessResult) -> str:
    failed = result.filter_events(lambda event: event.is_step_failure)
    return str(failed[0].step_failure_data)


def test_a_loop_that_ends_makes_a_successful_run(instance: dg.DagsterInstance) -> None:
    done = threading.Event()
    result = run_hosted(instance, lambda _: done.set(), most_s=60)
    assert result.success
    assert done.is_set()
    tags = read_tags(instance)
    assert not is_worker_gone(tags[WORKER_TAG])
    assert int(tags[MAX_RUNTIME_TAG]) > 60
    assert RETRY_TAG not in tags


def test_without_a_limit_a_run_has_no_max_runtime(instance: dg.DagsterInstance) -> None:
    run_hosted(instance, lambda _: None)
    assert MAX_RUNTIME_TAG not in read_tags(instance)


def test_an_interrupt_waits_for_the_drain(instance: dg.DagsterInstance) -> None:
    drained = threading.Event()

    def work(stop: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(DEADLINE_S), "the loop was never asked to stop"
        # Long after the main thread has begun to wait again.
        assert not drained.wait(1.0)
        drained.set()

    result = run_hosted(instance, work)
    assert drained.is_set(), "the run ended before its loop had drained"
    assert not result.success


def test_a_run_that_is_cancelled_in_its_record_alone_drains(instance: dg.DagsterInstance) -> None:
    drained = threading.Event()

    def work(stop: threading.Event) -> None:
        (run,) = instance.get_runs()
        instance.report_run_canceling(run)
        assert stop.wait(DEADLINE_S), "the loop was never asked to stop"
        drained.set()

    run_hosted(instance, work)
    assert drained.is_set()
    (run,) = instance.get_runs()
    assert run.status is dg.DagsterRunStatus.CANCELED


@pytest.fixture
def is_signing_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run write a sign of life at each of its looks."""
    monkeypatch.setattr(hosting, "_SIGN_S", 0.0)
    monkeypatch.setattr(hosting, "_LOOK_S", 0.0)


@pytest.mark.usefixtures("is_signing_often")
def test_a_run_shows_signs_of_life_while_it_waits_for_its_loop(
    instance: dg.DagsterInstance,
) -> None:
    def work(_: threading.Event) -> None:
        first = read_tags(instance)[ALIVE_TAG]
        wait_for(
            lambda: read_tags(instance)[ALIVE_TAG] != first, DEADLINE_S, "another sign of life"
        )

    assert run_hosted(instance, work).success


@pytest.mark.usefixtures("is_signing_often")
def test_a_sign_of_life_that_cannot_be_written_ends_no_run(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def refuse(*_: object) -> None:
        tried.set()
        raise OSError

    def work(_: threading.Event) -> None:
        monkeypatch.setattr(instance, "add_run_tags", refuse)
        assert tried.wait(DEADLINE_S), "no sign was written"
        monkeypatch.undo()

    assert run_hosted(instance, work).success


def test_a_failure_tells_our_own_words_and_when_to_try_again(instance: dg.DagsterInstance) -> None:
    def work(_: threading.Event) -> None:
        raise StagingError("the log is full", fix="free space", retry=Retry.AFTER_FIX)

    result = run_hosted(instance, work)
    assert "the log is full; fix: free space" in read_failure(result)
    assert read_tags(instance)[RETRY_TAG] == "AFTER_FIX"


def test_the_text_of_another_failure_is_never_told(instance: dg.DagsterInstance) -> None:
    def work(_: threading.Event) -> None:
        raise ValueError("another value") from KeyError("a row's value")

    result = run_hosted(instance, work)
    told = read_failure(result)
    assert "unexpected ValueError" in told
    assert "value'" not in told
    assert "another" not in told
    assert read_tags(instance)[RETRY_TAG] == "LATER"
