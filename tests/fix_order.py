"""The order of a run, which tests with services it plays, and which tests are fast.

The tests run in the order of the services that they need: none, PostgreSQL or Redis, Spark,
Dagster. pytest-xdist gives each group of tests to one worker. The tests of a folder that use the
SparkSession are a group. All other tests with a JVM are the group `dagster`: they start their JVMs
in processes of their own. So a worker has at most one SparkSession.

A run plays a sample of the tests that take long. In each folder it plays a quarter of the variants
of tests with simulated histories, a third of those with PostgreSQL, and an eighth of the tests with
a JVM, one variant of each of these. The seed chooses them. This also holds for `pytest PATH`. A
test that is marked `core` is always played, in one variant. With `--every-test`, a run plays all
tests in all variants, as `make soak` does. A test that is marked `soak` is always played in all
variants.

A test is fast if it needs no service, plays no simulated history and is not `soak`. Nobody marks it
by hand: its fixtures show what it needs, and so do the calls of the test and of its fixtures.
`make test-fast` runs the fast tests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType
from typing import Any

import pytest

from orchestration.demo.servers import running_servers
from spark_jobs.session.session import open_session
from tests.fix_header import SEED_KEY
from tests.fix_postgres import run_postgres
from tests.fix_spark import find_java, run_spark

SERVICE_FIXTURES = (
    {"postgres15", "postgres18", "private_postgres", "redis_process", "browser", "object_store"},
    {"spark"},
    {"dagster", "start_dagster", "start_demo"},
)
# A test or fixture that calls one of these may have a service that its arguments do not show.
STARTERS = (
    pytest.FixtureRequest.getfixturevalue,
    run_postgres,
    running_servers,
    find_java,
    run_spark,
    open_session,
)
# Its tests play thousands of histories, which takes minutes.
SIMULATOR = "_simulated"
_SIMULATED, _POSTGRES, _SPARK = 0, 1, 2
# By what a test needs, of how many a run plays one. All tests take two cores hours, and `.ci/run`
# has 40 minutes.
_TESTS_FOR_EACH_PLAYED = {_SIMULATED: 4, _POSTGRES: 3, _SPARK: 8}
_STARTER_NAMES = {starter.__name__ for starter in STARTERS}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--every-test",
        action="store_true",
        help="play all tests with services in all variants, and not a sample that the seed chooses",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group what has a JVM, before pytest-xdist distributes the groups; mark what is fast."""
    if _cost(item) >= _SPARK:
        item.add_marker(pytest.mark.xdist_group(_choose_group(item)))
    is_long = _is_simulated(item) or _is_soak(item)
    if _cost(item) == 0 and not is_long:
        item.add_marker(pytest.mark.fast)


@pytest.hookimpl(trylast=True)  # After the choice of tests by their markers.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by the most expensive service a test needs; the order of files stays within each."""
    items.sort(key=_cost)
    if config.getoption("--every-test"):
        return
    left_out: set[str] = set()
    for service, tests_for_each in _TESTS_FOR_EACH_PLAYED.items():
        found = [item for item in items if _is_sampled(item, service)]
        names = [item.nodeid for item in found]
        core = {item.nodeid for item in found if item.get_closest_marker("core")}
        left_out |= set(names) - choose_tests(
            names,
            core,
            config.stash[SEED_KEY],
            tests_for_each=tests_for_each,
            plays_one_variant=service == _SPARK,
        )
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def choose_tests(
    names: Sequence[str],
    core: Collection[str],
    seed: int,
    *,
    tests_for_each: int,
    plays_one_variant: bool,
) -> set[str]:
    """Choose the tests of `core`, and of each folder one test of so many others, rounded up.

    A name is that of a variant: `folder/file::test[…]`. A chosen test has one variant. If
    `plays_one_variant` is false, each variant counts as a test of its own.
    """
    variants: dict[str, list[str]] = {}
    for name in names:
        is_together = plays_one_variant or name in core
        variants.setdefault(name.partition("[")[0] if is_together else name, []).append(name)
    others: dict[str, list[str]] = {}
    for test, found in variants.items():
        if not set(core).intersection(found):
            others.setdefault(test.partition("::")[0].rpartition("/")[0], []).append(test)
    left_out: set[str] = set()
    for folder, tests in others.items():
        played = math.ceil(len(tests) / tests_for_each)
        left_out.update(random.Random(f"{seed} {folder}").sample(tests, len(tests) - played))
    chosen = [(test, found) for test, found in variants.items() if test not in left_out]
    return {random.Random(f"{seed} {test}").choice(found) for test, found in chosen}


def find_cost(test: Callable[..., Any], fixtures: Mapping[str, Callable[..., Any]]) -> int:
    """The rank of the most expensive service that a test needs; 0 if it needs none.

    `fixtures` has the functions of all fixtures that the test requests, also through others.
    """
    ranks = [rank for rank, names in enumerate(SERVICE_FIXTURES, 1) if names & set(fixtures)]
    if any(_calls_starter(function) for function in (test, *fixtures.values())):
        ranks.append(_POSTGRES)
    return max(ranks, default=0)


def _is_sampled(item: pytest.Item, service: int) -> bool:
    if _is_soak(item) or (_cost(item) == 0 and not _is_simulated(item)):
        return False
    return min(_cost(item), _SPARK) == service


def _is_simulated(item: pytest.Item) -> bool:
    return SIMULATOR in _list_fixtures(item)


def _is_soak(item: pytest.Item) -> bool:
    return item.get_closest_marker("soak") is not None


def _choose_group(item: pytest.Item) -> str:
    if "spark" not in _list_fixtures(item):
        return "dagster"
    folders = item.nodeid.partition("::")[0].split("/")[1:-1] or ["files"]
    own = folders[1:] if folders[0] == "spark" else folders
    return "_".join(["spark", *own])


def _cost(item: pytest.Item) -> int:
    assert isinstance(item, pytest.Function)
    return find_cost(item.function, _list_fixtures(item))


def _list_fixtures(item: pytest.Item) -> dict[str, Callable[..., Any]]:
    """The function of each fixture that a test requests, also through others."""
    assert isinstance(item, pytest.Function)
    known = item._fixtureinfo.name2fixturedefs
    return {name: known[name][-1].func for name in item.fixturenames if name in known}


def _calls_starter(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and not _STARTER_NAMES.isdisjoint(_list_names(code))


def _list_names(code: CodeType) -> set[str]:
    """The names that a function uses, and the functions inside it."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_list_names, inner))
