from __future__ import annotations

import itertools
import random

import pytest

from cdc_core.backfill.plan import Plan, Range
from cdc_core.spooled import Key


def key(number: int | None) -> Key | None:
    return None if number is None else (str(number),)


def test_ranges_are_cut_one_after_the_other() -> None:
    plan = Plan()
    assert plan.cut(key(10)) == Range(0, None, key(10))
    assert plan.rest == (key(10), None)
    assert plan.cut(None) == Range(1, key(10), None)
    assert not plan.has_more
    assert not plan.is_done
    assert plan.record_staged(0, 1) is not None
    assert plan.record_staged(0, 1) is None
    assert plan.record_staged(1, 1) is not None
    assert plan.is_done


def test_a_void_range_is_read_again_under_another_attempt() -> None:
    plan = Plan()
    plan.cut(key(10))
    plan.cut(key(20))
    plan.record_void(0, 1)
    assert plan.take_again() == Range(0, None, key(10), 2)
    # Its first attempt may come after all, and counts for nothing.
    assert plan.record_staged(0, 1) is None
    assert plan.record_staged(0, 2) is not None


def test_the_last_range_is_cut_anew_since_the_table_may_have_grown() -> None:
    plan = Plan()
    plan.cut(key(10))
    plan.cut(None)
    plan.record_void(1, 1)
    assert plan.take_again() is None
    assert plan.rest == (key(10), None)
    assert plan.cut(key(30)).number == 2


@pytest.mark.parametrize("seed", range(50))
def test_what_is_left_after_a_restart_is_what_is_not_staged(seed: int) -> None:
    rng = random.Random(seed)
    plan, at = Plan(), 0
    staged: list[Range] = []
    cut: list[Range] = []
    for _ in range(rng.randint(0, 12)):
        at += rng.randint(1, 5)
        cut.append(plan.cut(key(at)))
    if rng.random() < 0.3:
        cut.append(plan.cut(None))
    staged = [one for one in cut if rng.random() < 0.6]
    resumed = Plan(staged=rng.sample(staged, len(staged)))
    left: list[Range] = []
    while (again := resumed.take_again()) is not None:
        left.append(again)
    while resumed.rest is not None:
        left.append(resumed.cut(None))
    numbers = [one.number for one in (*staged, *left)]
    assert len(numbers) == len(set(numbers))
    covered = sorted((*staged, *left), key=lambda one: int(one.low[0]) if one.low else -1)
    assert covered[0].low is None
    assert covered[-1].high is None
    assert all(a.high == b.low for a, b in itertools.pairwise(covered))


def test_a_range_that_is_split_leaves_its_rest_to_be_read() -> None:
    plan = Plan()
    first, second = plan.cut(key(10)), plan.cut(None)
    part = plan.split(first, (str(4),))
    assert part == Range(0, None, key(4))
    assert plan.take_again() == Range(2, key(4), key(10))
    assert plan.record_staged(0, 1) == part
    assert plan.record_staged(second.number, 1) is not None
    assert not plan.is_done
    # Voided, the rest keeps its bounds.
    plan.record_void(2, 1)
    assert plan.take_again() == Range(2, key(4), key(10), 2)
    assert plan.record_staged(2, 2) is not None
    assert plan.is_done


@pytest.mark.parametrize("seed", range(200))
def test_after_restarts_and_splits_every_key_is_read(seed: int) -> None:
    """Whatever was split, staged or void in whatever session, nothing is left out."""
    rng = random.Random(seed)
    staged: list[Range] = []
    keys = range(1, 60)
    for _ in range(4):
        plan, at = Plan(staged=rng.sample(staged, len(staged))), 0
        for _ in range(rng.randint(0, 15)):
            if plan.rest is not None:
                at = int(plan.rest[0][0]) if plan.rest[0] else 0
            taken = plan.take_again() if rng.random() < 0.5 else None
            if taken is None and plan.rest is not None:
                taken = plan.cut(key(at + rng.randint(1, 9)) if at < 50 else None)
            if taken is None:
                continue
            inside = [n for n in keys if lies_in(taken, n)]
            if len(inside) > 2 and rng.random() < 0.4:
                taken = plan.split(taken, (str(inside[rng.randrange(len(inside) - 1)]),))
            if rng.random() < 0.6:
                assert plan.record_staged(taken.number, taken.attempt) == taken
                staged.append(taken)
            else:
                plan.record_void(taken.number, taken.attempt)
    last = Plan(staged=staged)
    left = [*iter(last.take_again, None)]
    if last.rest is not None:
        left.append(last.cut(None))
    assert len({one.number for one in (*staged, *left)}) == len(staged) + len(left)
    for number in keys:
        assert any(lies_in(one, number) for one in (*staged, *left)), number


def lies_in(one: Range, number: int) -> bool:
    low = int(one.low[0]) if one.low else 0
    return low < number and (one.high is None or number <= int(one.high[0]))


def test_ranges_of_another_plan_are_cut_anew_one_after_the_other() -> None:
    plan = Plan.of_ranges([Range(7, None, key(10)), Range(9, key(20), None, 3)])
    cut = []
    while plan.rest is not None:
        low, high = plan.rest
        cut.append(plan.cut(key(5) if low is None else None))
        assert cut[-1].high in {key(5), high}
    assert cut == [Range(0, None, key(5)), Range(1, key(5), key(10)), Range(2, key(20), None)]
    for one in cut:
        assert not plan.is_done
        plan.record_staged(one.number, one.attempt)
    assert plan.is_done
    assert plan.taken == {one.number: one for one in cut}
