"""Wake-ups: capture announces each staged LSN to a process that waits for more of the log.

An announcement says only that a look at the log is worthwhile. If one is lost, the process waits
for as long as it asked for. So nothing here raises if Redis is down, and nothing waits for Redis.
"""

from __future__ import annotations

import threading

import redis
from redis.client import PubSub

from cdc_core.coordination.connection import open_redis
from cdc_core.settings import RedisSettings

# How often the listener checks whether it must end.
_LISTEN_S = 0.5
_RECONNECT_S = 1.0


class Wakeups:
    """Listens to the announcements of one slot in a thread of its own."""

    def __init__(self, settings: RedisSettings, *, slot: str) -> None:
        """Start the listener; Redis need not be up yet."""
        self._redis = open_redis(settings)
        self._prefix = f"{settings.prefix}:{slot}"
        self._news = threading.Condition()
        self._announced: str | None = None
        self._is_news = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walgate-wakeups", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Return when a new staged LSN was announced since the last wait, or after `seconds`."""
        with self._news:
            self._news.wait_for(lambda: self._is_news, seconds)
            self._is_news = False

    def wake(self) -> None:
        """End the wait of another thread."""
        with self._news:
            self._is_news = True
            self._news.notify_all()

    def close(self) -> None:
        """End the wait of another thread, and stop the listener."""
        self._closing.set()
        self.wake()
        self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with self._redis.pubsub() as listener:  # type: ignore[no-untyped-call] # Not annotated.
                    self._listen(listener)
            except redis.RedisError:
                self._closing.wait(_RECONNECT_S)

    def _listen(self, listener: PubSub) -> None:
        listener.subscribe(f"{self._prefix}:staged")
        while not self._closing.is_set():
            message = listener.get_message(timeout=_LISTEN_S)
            match message:
                case {"type": "subscribe"}:
                    # An LSN that was announced before the subscription.
                    self._hear(self._redis.hget(f"{self._prefix}:live", "staged_lsn"))
                case {"type": "message", "data": staged}:
                    self._hear(staged)

    def _hear(self, staged: object) -> None:
        """Wake the waiting thread, unless the same LSN was announced before."""
        if isinstance(staged, str) and staged != self._announced:
            self._announced = staged
            self.wake()
