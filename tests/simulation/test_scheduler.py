"""The scheduler itself: every order is tried once, and a history is played again as it was."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import worlds
from tests.simulation.histories import explore, play, shrink
from tests.simulation.scheduler import Choices, Given, Scheduler, Seeded


def test_all_orders_of_two_actors_are_tried_once() -> None:
    orders: list[str] = []

    def play_two(choices: Choices) -> None:
        scheduler, order = Scheduler(choices), list[str]()

        def act(name: str) -> None:
            order.append(name)
            scheduler.pause("again")
            order.append(name)

        scheduler.spawn("a", lambda: act("a"))
        scheduler.spawn("b", lambda: act("b"))
        scheduler.run()
        orders.append("".join(order))

    assert [failure for failure in explore(play_two, deviations=9) if failure] == []
    # Two steps of each: the ways to choose when `a` goes.
    assert Counter(orders) == dict.fromkeys(("aabb", "abab", "abba", "baab", "baba", "bbaa"), 1)


def test_parts_of_a_search_are_all_of_it() -> None:
    seen: Counter[tuple[int, ...]] = Counter()

    def play_three(choices: Choices) -> None:
        seen[tuple(choices.take(3) for _ in range(3))] += 1

    for part in range(4):
        list(explore(play_three, deviations=3, part=part, parts=4))
    assert len(seen) == 27
    # Each part has to play the plainest one to know what there is.
    assert seen.pop((0, 0, 0)) == 4
    assert set(seen.values()) == {1}


@pytest.mark.usefixtures("_simulated")
@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_played_again_from_its_choices(seed: int) -> None:
    seeded = Seeded(seed)
    play(worlds.play_backfill, seeded)
    given = Given(seeded.taken)
    play(worlds.play_backfill, given)
    assert given.steps == seeded.steps


def test_a_failure_is_shrunk_to_what_it_needs() -> None:
    def play_twos(choices: Choices) -> None:
        taken = [choices.take(4) for _ in range(20)]
        if taken.count(2) >= 2:
            raise ValueError("twice")

    choices = Given([0, 3, 2, 0, 1, 2, 2, 3, 0, 2])
    failure = play(play_twos, choices)
    assert failure is not None
    assert shrink(play_twos, failure).choices == (2, 2)
