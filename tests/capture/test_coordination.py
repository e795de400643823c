"""One suite for the coordination, passed by Redis and by its fake in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from cdc_core.coordination.live import Figures
from cdc_core.coordination.redis_coordination import RedisCoordination
from cdc_core.coordination.wakeups import Wakeups
from cdc_core.settings import RedisSettings
from tests.fakes import FakeCoordination, FakeWakeups
from tests.fix_redis import RedisServer

FIGURES = Figures(
    term=1,
    state="streaming",
    epoch=1,
    staged_lsn="0/10",
    current_lsn="0/20",
    lag_bytes=16,
    lag_seconds=0.5,
    rows_per_second=7.0,
    rows=3,
    transactions=2,
    batches=1,
    at=1.0,
)


@pytest.fixture(params=["real", "fake"])
def coordination(
    request: pytest.FixtureRequest,
) -> Iterator[RedisCoordination | FakeCoordination]:
    """Lend coordination that is up."""
    if request.param == "fake":
        yield FakeCoordination()
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    lease = RedisCoordination(RedisSettings(url=server.url), slot="walgate")
    yield lease
    lease.close()


def test_each_term_is_greater_and_figures_are_shown(
    coordination: RedisCoordination | FakeCoordination,
) -> None:
    first, second = coordination.take_term(), coordination.take_term()
    assert first is not None
    assert second is not None
    assert second > first
    assert coordination.publish(FIGURES)
    assert coordination.read_figures() == FIGURES


def test_coordination_that_is_down_answers_nothing_and_raises_nothing(
    coordination: RedisCoordination | FakeCoordination, request: pytest.FixtureRequest
) -> None:
    if isinstance(coordination, FakeCoordination):
        coordination.is_down = True
    else:
        request.getfixturevalue("redis_server").stop()
    assert coordination.take_term() is None
    assert not coordination.publish(FIGURES)
    assert coordination.read_figures() is None


@pytest.fixture
def wakeups(
    coordination: RedisCoordination | FakeCoordination, request: pytest.FixtureRequest
) -> Iterator[Wakeups | FakeWakeups]:
    """Lend what hears the coordination's announcements."""
    if isinstance(coordination, FakeCoordination):
        yield coordination.listen()
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    with closing(Wakeups(RedisSettings(url=server.url), slot="walgate")) as real:
        yield real


def time_wait(wakeups: Wakeups | FakeWakeups, seconds: float) -> float:
    """Wait, and say for how long."""
    began = time.monotonic()
    wakeups.wait(seconds)
    return time.monotonic() - began


def test_a_wait_ends_when_another_staged_lsn_is_announced_and_not_when_the_same_is(
    coordination: RedisCoordination | FakeCoordination, wakeups: Wakeups | FakeWakeups
) -> None:
    for staged in ("0/10", "0/18", "0/8"):
        coordination.publish(replace(FIGURES, staged_lsn=staged))
        assert time_wait(wakeups, 60.0) < 30.0, staged
    coordination.publish(replace(FIGURES, staged_lsn="0/8"))
    assert time_wait(wakeups, 0.5) >= 0.5


@pytest.mark.parametrize("ending", ["wake", "close"])
def test_a_wait_ends_when_another_thread_says_so(
    wakeups: Wakeups | FakeWakeups, ending: str
) -> None:
    waiting = threading.Thread(target=wakeups.wait, args=(60.0,), daemon=True)
    waiting.start()
    getattr(wakeups, ending)()
    waiting.join(30.0)
    assert not waiting.is_alive()


def test_a_wait_lasts_while_coordination_is_down_and_is_ended_by_it_afterwards(
    coordination: RedisCoordination | FakeCoordination,
    wakeups: Wakeups | FakeWakeups,
    request: pytest.FixtureRequest,
) -> None:
    coordination.publish(FIGURES)
    assert time_wait(wakeups, 60.0) < 30.0
    if isinstance(coordination, FakeCoordination):
        coordination.is_down = True
    else:
        request.getfixturevalue("redis_server").stop()
    coordination.publish(replace(FIGURES, staged_lsn="0/11"))
    worked = time.process_time()
    assert time_wait(wakeups, 1.0) >= 1.0
    assert time.process_time() - worked < 0.5, "it waits, it does not ask again and again"
    if isinstance(coordination, FakeCoordination):
        coordination.is_down = False
    else:
        request.getfixturevalue("redis_server").start()
    assert coordination.publish(replace(FIGURES, staged_lsn="0/12"))
    assert time_wait(wakeups, 60.0) < 30.0
