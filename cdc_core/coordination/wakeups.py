"""Wake-ups: what capture announces as staged, for one who waits for more of the log.

An announcement says only that it is worth looking; one that is lost costs the wait that was asked
for. So nothing here raises for an absent Redis, and nothing waits for it.
"""

from __future__ import annotations

import threading

import redis
from redis.client import PubSub

from cdc_core.coordination.connection import open_redis
from cdc_core.settings import RedisSettings

# The listener looks this often whether it is to end.
_LISTEN_S = 0.5
_RECONNECT_S = 1.0


class Wakeups:
    """The announcements of one slot, heard by a thread of its own."""

    def __init__(self, settings: RedisSettings, *, slot: str) -> None:
        """Start to listen; Redis need not be there yet."""
        self._redis = open_redis(settings)
        self._prefix = f"{settings.prefix}:{slot}"
        self._news = threading.Condition()
        self._announced: str | None = None
        self._is_news = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walgate-wakeups", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Return once another staged LSN was announced since the last wait, or after `seconds`."""
        with self._news:
            self._news.wait_for(lambda: self._is_news, seconds)
            self._is_news = False

    def wake(self) -> None:
        """End the wait of another thread."""
        with self._news:
            self._is_news = True
            self._news.notify_all()

    def close(self) -> None:
        """End the wait of another thread, and listen no more."""
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
                    # What was announced before anyone listened.
                    self._hear(self._redis.hget(f"{self._prefix}:live", "staged_lsn"))
                case {"type": "message", "data": staged}:
                    self._hear(staged)

    def _hear(self, staged: object) -> None:
        """Take an announcement; the same LSN again is no news."""
        if isinstance(staged, str) and staged != self._announced:
            self._announced = staged
            self.wake()
