from __future__ import annotations

import threading

import pytest

from cdc_core.capture.watched_thread import WatchedThread


def test_a_thread_raises_nothing_while_it_runs_and_after_its_work() -> None:
    may_end = threading.Event()

    def work() -> None:
        may_end.wait()

    thread = WatchedThread(work, name="test")
    assert thread.is_alive
    thread.require_alive()
    may_end.set()
    thread.join()
    assert not thread.is_alive
    thread.require_alive()


@pytest.mark.parametrize("error", [OSError("a disk"), SystemExit(3)])
def test_the_error_that_ended_a_thread_can_be_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    thread = WatchedThread(fail, name="test")
    thread.join()
    with pytest.raises(type(error)):
        thread.require_alive()
    assert thread.failure is error
