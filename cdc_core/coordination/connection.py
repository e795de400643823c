"""Makes the client of Redis. Its timeouts are short, because Walgate works without Redis."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cdc_core.settings import RedisSettings

_TIMEOUT_S = 2.0


def open_redis(settings: RedisSettings) -> redis.Redis:
    """Make a client, which connects when it is first used."""
    return redis.Redis.from_url(
        settings.url,
        decode_responses=True,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        health_check_interval=10,
        # One immediate retry: the connection may be an old one, to a server that was restarted.
        retry=Retry(NoBackoff(), 1),
    )
