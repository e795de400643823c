"""Redis is emptied, stopped, put back from an old copy, or lies: the log is the truth even so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.fix_pipeline import Pipeline
from tests.fix_redis import RedisServer
from tests.load import prepare, running_load
from tests.postgres_server import Database
from tests.walgate_command import run_walgate


@pytest.fixture
def pipeline(
    database18: Database, make_pipeline: Callable[..., Pipeline], redis_server: RedisServer
) -> Pipeline:
    return make_pipeline(database18, redis=redis_server.url)


def list_problems(pipeline: Pipeline) -> set[str]:
    """Give the codes of what `status` shows."""
    answer = run_walgate("status", "--json", folder=pipeline.folder)
    return {problem["code"] for problem in json.loads(answer.stdout)["problems"]}


def test_f09_redis_may_lose_everything_in_mid_run(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    redis_server: RedisServer,
    tmp_path: Path,
    seed: int,
) -> None:
    scripts = prepare(database18, tmp_path)
    pipeline = make_pipeline(database18, redis=redis_server.url)
    with running_load(database18, scripts, seed=seed % 2**31):
        child = pipeline.start_streaming()
        pipeline.wait_until_staged(pipeline.current_lsn())
        old = redis_server.save_dump()
        redis_server.flush()
        pipeline.wait_until_staged(pipeline.current_lsn())
        redis_server.stop()
        pipeline.wait_until_staged(pipeline.current_lsn())
        assert "redis_down" in list_problems(pipeline)
        redis_server.restore_dump(old)
        pipeline.wait_until_staged(pipeline.current_lsn())
        assert "redis_down" not in list_problems(pipeline)
        child.kill()
    pipeline.catch_up()
    assert pipeline.require_truth() > 100


def test_history_30_what_redis_says_has_landed_is_never_believed(
    pipeline: Pipeline, redis_server: RedisServer
) -> None:
    database = pipeline.database
    database.execute("create table orders (id bigserial primary key, note text)")
    database.execute("insert into orders (note) values ('a')")
    pipeline.catch_up()
    ahead = pipeline.current_lsn() + (1 << 30)
    with redis.from_url(redis_server.url, decode_responses=True) as client:
        prefix = f"walgate:{pipeline.slot}"
        client.hset(f"{prefix}:live", "staged_lsn", f"0/{ahead:X}")
        client.set(f"{prefix}:term", "not a number")
    database.execute("insert into orders (note) values ('b')")
    pipeline.catch_up()
    assert pipeline.require_truth() == 2
