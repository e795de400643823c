"""Locks, events and a thread pool for the session of a backfill, made of actors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from tests.simulation import world


class Lock:
    """A lock that hands over while another actor holds it."""

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        """Take it."""
        if self._is_held:
            world.World.now.scheduler.wait("waits for a lock", lambda: not self._is_held)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self._is_held = False


class Event:
    """An event. `wait` ends as soon as something may have changed in the world."""

    def __init__(self) -> None:
        self._is_set = False
        self._seen = -1
        self._looks_twice = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        now = world.World.now
        seen, is_second = self._seen, self._looks_twice

        def is_news() -> bool:
            return is_second or now.changes != seen

        now.scheduler.wait("looks again", is_news, seconds=seconds)
        # The caller acts at the next look on what it learned at this one, so allow one more look.
        self._looks_twice = not is_second
        self._seen = now.changes
        return self._is_set


class Future:
    """What a pool's actor gives."""

    def __init__(self) -> None:
        self.is_done = False
        self._error: Exception | None = None

    def result(self) -> None:
        """Raise what the actor raised."""
        if self._error is not None:
            raise self._error

    def work(self, run: Callable[..., Any], *arguments: Any) -> None:
        """Do it, as the actor."""
        try:
            run(*arguments)
        except Exception as error:  # noqa: BLE001 - who waits for it raises it.
            self._error = error
        self.is_done = True
        world.World.now.touch()


class Pool:
    """A pool of threads: each task is an actor of the worker."""

    def __init__(self, count: int, name: str) -> None:
        del count
        self._name = name
        self._futures: list[Future] = []

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for all."""
        futures = self._futures
        world.World.now.scheduler.wait("joins", lambda: all(one.is_done for one in futures))

    def submit(self, run: Callable[..., Any], *arguments: Any) -> Future:
        future = Future()
        self._futures.append(future)
        name = f"reader {len(self._futures)}"
        world.World.now.scheduler.spawn(
            name, lambda: future.work(run, *arguments), process="worker"
        )
        return future


def wait(
    futures: Iterable[Future], *, timeout: float, return_when: str
) -> tuple[set[Future], set[Future]]:
    """Wait until one is done, or something else may have changed."""
    del return_when
    running = set(futures)
    now = world.World.now
    seen = now.changes
    if running and not any(one.is_done for one in running):
        now.scheduler.wait("looks again", lambda: now.changes != seen, seconds=timeout)
    done = {one for one in running if one.is_done}
    return done, running - done
