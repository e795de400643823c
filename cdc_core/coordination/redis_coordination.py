"""What a running capture keeps in Redis: its live figures, its term number, its wake-ups.

Redis may be emptied, stopped or restored from an old copy at any moment. Walgate fences nothing and
drops nothing because of Redis: only staging and the slot decide.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import redis

from cdc_core.coordination.connection import open_redis
from cdc_core.coordination.live import Figures
from cdc_core.settings import RedisSettings

# Redis deletes figures that are older than this: their term has ended.
_FIGURES_TTL_S = 30

_logger = logging.getLogger("walgate.coordination")


class RedisCoordination:
    """The keys of one slot in Redis. If Redis is down, a method returns None or False."""

    def __init__(self, settings: RedisSettings, *, slot: str) -> None:
        """Make the client; it connects at its first use."""
        self._redis = open_redis(settings)
        self._prefix = f"{settings.prefix}:{slot}"
        self._is_up = True

    def take_term(self) -> int | None:
        """Take the next term number, which the figures carry; None if Redis is down."""
        try:
            return int(self._redis.incr(f"{self._prefix}:term"))
        except redis.RedisError as exc:
            self._say(exc)
            return None

    def publish(self, figures: Figures) -> bool:
        """Store the figures and announce the staged LSN; False if Redis is down."""
        try:
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.hset(f"{self._prefix}:live", mapping=dict[Any, Any](figures.to_fields()))
            pipeline.expire(f"{self._prefix}:live", _FIGURES_TTL_S)
            pipeline.publish(f"{self._prefix}:staged", figures.staged_lsn)
            pipeline.execute()
        except redis.RedisError as exc:
            self._say(exc)
            return False
        self._say(None)
        return True

    def read_figures(self) -> Figures | None:
        """Read the figures of the running capture; None if Redis has none or is down."""
        try:
            # The client's type stubs also cover its asynchronous form.
            stored = cast("dict[str, str]", self._redis.hgetall(f"{self._prefix}:live"))
        except redis.RedisError:
            return None
        return Figures.from_fields(stored)

    def is_up(self) -> bool:
        """Whether Redis answers."""
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    def close(self) -> None:
        """Disconnect."""
        self._redis.close()

    def _say(self, exc: Exception | None) -> None:
        """Log once when Redis goes down, and once when it answers again."""
        if (exc is None) == self._is_up:
            return
        self._is_up = exc is None
        if exc is None:
            _logger.info("redis answers again", extra={"fields": {}})
        else:
            _logger.warning(
                "redis is down, capture goes on without it",
                extra={"fields": {"error": type(exc).__name__}},
            )
