"""A test that needs a service is never among the fast ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestration.demo.servers import running_servers
from tests.fix_order import SERVICE_FIXTURES, SIMULATOR, choose_tests, find_cost

SERVICES = set().union(*SERVICE_FIXTURES)


def need_nothing(folder: Path) -> Path:
    return folder


def ask_by_name(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue("redis_server")


def start_inside(folder: Path) -> Callable[[], None]:
    def start() -> None:
        with running_servers(folder):
            pass

    return start


def test_a_test_without_a_service_costs_nothing() -> None:
    assert find_cost(need_nothing, {"tmp_path": need_nothing}) == 0


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_test_that_requests_a_service_costs_something(service: str) -> None:
    assert find_cost(need_nothing, {"tmp_path": need_nothing, service: need_nothing}) > 0


@pytest.mark.parametrize("starting", [ask_by_name, start_inside])
def test_a_test_that_starts_a_service_itself_costs_something(
    starting: Callable[..., object],
) -> None:
    assert find_cost(starting, {}) > 0
    assert find_cost(need_nothing, {"lent": starting}) > 0


def test_the_fast_tests_of_this_run_request_no_service(request: pytest.FixtureRequest) -> None:
    fast = [item for item in request.session.items if item.get_closest_marker("fast")]
    assert request.node in fast
    for item in fast:
        assert isinstance(item, pytest.Function)
        assert not (SERVICES | {SIMULATOR}).intersection(item.fixturenames), item.nodeid


def test_a_run_plays_some_tests_of_a_folder_in_one_variant_each_and_in_time_all() -> None:
    tests = [f"a/{file}.py::test_{number}" for file in "xy" for number in range(3)]
    variants = [f"{test}[{variant}]" for test in tests for variant in ("1", "2[0]")]
    alone, core = "b/z.py::test_alone", "a/x.py::test_core"
    names = [*variants, alone, core]
    found = [choose_one_variant(names, core, seed) for seed in range(100)]
    for chosen in found:
        assert {alone, core} < chosen
        assert len({name.partition("[")[0] for name in chosen}) == len(chosen) == 4
    assert set().union(*found) == set(names)
    assert found == [choose_one_variant(names, core, seed) for seed in range(100)]


def choose_one_variant(names: list[str], core: str, seed: int) -> set[str]:
    """Choose a fifth of the tests, one variant of each."""
    return choose_tests(names, {core}, seed, tests_for_each=5, plays_one_variant=True)


def test_each_variant_may_count_as_a_test_of_its_own() -> None:
    names = [f"a/x.py::test_{number}[{variant}]" for number in range(4) for variant in "12"]
    found = [
        choose_tests(names, (), seed, tests_for_each=3, plays_one_variant=False)
        for seed in range(50)
    ]
    assert {len(chosen) for chosen in found} == {3}
    assert set().union(*found) == set(names)


@pytest.mark.parametrize("plays_one_variant", [True, False])
def test_a_core_test_is_played_in_one_variant(*, plays_one_variant: bool) -> None:
    names = ["a/x.py::test_core[1]", "a/x.py::test_core[2]"]
    for seed in range(20):
        chosen = choose_tests(
            names, set(names), seed, tests_for_each=2, plays_one_variant=plays_one_variant
        )
        assert len(chosen) == 1
