"""A pipeline whose store is down for a while, refuses requests, or loses replies."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import walgate
from cdc_core.lake_storage.object_place import ObjectPlace
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.store_proxy import SLOW_DOWN, Fault, Faults, Request, StoreProxy
from tests.walgate_command import Answer as CommandAnswer
from tests.walgate_command import run_walgate

DONE, MAY_BE_TRIED_AGAIN = 0, 3


@pytest.fixture
def proxy(object_lake: ObjectPlace) -> Iterator[StoreProxy]:
    with StoreProxy(object_lake.store).run() as running:
        yield running


@pytest.fixture
def failing(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    object_lake: ObjectPlace,
    proxy: StoreProxy,
) -> Pipeline:
    """A pipeline that reaches its lake by way of the proxy."""
    database18.execute("create table t (k int primary key, v text)")
    return make_pipeline(database18, lake=replace(object_lake, store=proxy.store))


def change(database: Database, rng: random.Random) -> None:
    """Commit a transaction of some random changes."""
    keys = ", ".join(f"({rng.randrange(200)}, '{rng.random()}')" for _ in range(5))
    database.execute(
        f"insert into t select distinct on (k) k, v from (values {keys}) n (k, v)"
        " on conflict (k) do update set v = excluded.v;"
        f"delete from t where k = {rng.randrange(200)}"
    )


def read_source(pipeline: Pipeline) -> list[tuple[int, str]]:
    rows = pipeline.database.query("select k, v from t order by k")
    return [(int(key), str(value)) for key, value in rows]


def read_lake(pipeline: Pipeline) -> list[tuple[int, str]]:
    lake = walgate.open(pipeline.folder / "walgate.toml")
    with pytest.warns(walgate.TableWarning, match="may lack rows"):
        rows = lake.at("latest").table("public.t").to_arrow().to_pylist()
    return sorted((row["k"], row["v"]) for row in rows)


def try_again(pipeline: Pipeline, *command: str, tries: int) -> CommandAnswer:
    """Run a command until it is done. It may only fail in a way that a retry may cure."""
    for _ in range(tries):
        answer = run_walgate(*command, folder=pipeline.folder)
        if answer.exit_code == DONE:
            break
        assert answer.exit_code == MAY_BE_TRIED_AGAIN, answer
    return answer


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(1, 1), *(pytest.param(seed, 5, marks=pytest.mark.soak) for seed in range(2, 8))],
)
def test_lost_replies_and_refusals_neither_lose_nor_double_a_change(
    failing: Pipeline, proxy: StoreProxy, seed: int, rounds: int
) -> None:
    rng, faults = random.Random(seed), Faults(seed)
    failing.catch_up()
    for _ in range(rounds):
        proxy.choose = faults.choose
        for _ in range(10):
            change(failing.database, rng)
        try_again(failing, "replicate", "--until-current", tries=10)
        try_again(failing, "merge", tries=10)
        proxy.choose = lambda _: None
        assert try_again(failing, "merge", tries=1).exit_code == DONE
        assert read_lake(failing) == read_source(failing)
    assert failing.require_truth() == rounds * 10
    assert min(faults.counts.values()) > 0, faults.counts
    assert len(faults.counts) == 4, faults.counts


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [4, pytest.param(40, marks=pytest.mark.soak)])
def test_capture_outlives_a_store_that_is_down(
    failing: Pipeline, proxy: StoreProxy, seconds: int
) -> None:
    rng = random.Random(seconds)
    child = failing.start_streaming()
    change(failing.database, rng)
    failing.wait_until_staged(failing.current_lsn())
    refused = Counter[str]()

    def refuse(request: Request) -> Fault:
        refused[request.method] += 1
        return SLOW_DOWN

    proxy.choose = refuse
    end = time.monotonic() + seconds
    changes = 1
    while time.monotonic() < end:
        change(failing.database, rng)
        changes += 1
    proxy.choose = lambda _: None
    failing.wait_until_staged(failing.current_lsn())
    assert refused.total() > 0
    failing.finish(child)
    assert failing.require_truth() == changes
