"""Which cuts are kept, and how far the log may be trimmed."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.ledger import Cut
from spark_jobs.maintenance.log_floor import OLDEST_CUT, RETENTION, Floor, find_floor
from spark_jobs.maintenance.thinning import DatedCut, Keeping, choose_dropped

NOW = datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)
KEEPING = Keeping()


def bound(number: int) -> Bound:
    return Bound(1, Lsn(number))


def write_cuts(count: int, every: timedelta) -> list[DatedCut]:
    """The newest cut is of now."""
    return [
        DatedCut(bound(number), NOW - every * (count - number)) for number in range(1, count + 1)
    ]


def drop(cuts: list[DatedCut], now: datetime = NOW, **more: list[Bound]) -> list[DatedCut]:
    dropped = choose_dropped(cuts, now=now, keeping=KEEPING, **more)
    return [cut for cut in cuts if cut.bound not in dropped]


def test_cuts_are_kept_all_then_six_an_hour_then_one_an_hour_then_none() -> None:
    cuts = write_cuts(9 * 24 * 60, timedelta(minutes=1))
    ages = [NOW - cut.created_at for cut in drop(cuts)]
    assert sum(age < timedelta(minutes=15) for age in ages) == 15
    of_a_day = [age for age in ages if timedelta(minutes=15) <= age < timedelta(days=1)]
    assert 24 * 6 - 3 <= len(of_a_day) <= 24 * 6
    seldom = [age for age in ages if age >= timedelta(days=1)]
    assert 6 * 24 - 1 <= len(seldom) <= 6 * 24 + 1
    assert max(ages) < timedelta(days=7)


def test_it_does_not_matter_when_and_how_often_cuts_are_thinned() -> None:
    chance = random.Random(20261126)
    cuts = write_cuts(3000, timedelta(minutes=2))
    often: list[DatedCut] = []
    for cut in cuts:
        often.append(cut)
        if chance.random() < 0.01:
            often = drop(often, now=cut.created_at)
    assert drop(often) == drop(cuts)


def test_the_newest_cut_stays_however_old_it_is() -> None:
    cuts = [DatedCut(bound(number), NOW - timedelta(days=30)) for number in (1, 2)]
    assert drop(cuts) == cuts[1:]
    assert drop([]) == []


def test_the_cut_below_a_reader_stays() -> None:
    cuts = [DatedCut(bound(number), NOW - timedelta(days=30)) for number in (10, 20, 30)]
    assert [cut.bound for cut in drop(cuts, leased=[bound(29)])] == [bound(20), bound(30)]
    assert [cut.bound for cut in drop(cuts, leased=[bound(5)])] == [bound(30)]


def test_cuts_of_a_clock_that_was_set_back_are_thinned_by_their_bounds() -> None:
    before = [DatedCut(bound(number), NOW + timedelta(seconds=number)) for number in (1, 2)]
    after = [DatedCut(bound(3), NOW - timedelta(days=2))]
    assert drop([*before, *after]) == [*before, *after]


def make_cut(number: int, merged: dict[str, int], halted: tuple[str, ...] = ()) -> Cut:
    reached = {table: bound(lsn) for table, lsn in merged.items()}
    return Cut(bound(number), NOW, NOW, "run", {}, reached, halted)


def test_the_log_keeps_what_the_oldest_cut_needs() -> None:
    cuts = [make_cut(10, {"public.a": 10}), make_cut(20, {"public.a": 20, "public.b": 20})]
    assert find_floor(cuts, aged=bound(99), started=[]) == Floor(bound(10), OLDEST_CUT)
    assert find_floor([], aged=bound(99), started=[]) is None


@pytest.mark.parametrize("cut", [10, 20])
def test_the_log_keeps_what_a_table_that_is_behind_at_a_kept_cut_needs(cut: int) -> None:
    cuts = [make_cut(10, {"public.a": 4 if cut == 10 else 10}), make_cut(20, {"public.a": 4})]
    floor = find_floor(cuts, aged=bound(99), started=[])
    assert floor is not None
    assert (floor.bound, "public.a, which is behind" in floor.holder) == (bound(4), True)


def test_a_halted_table_does_not_hold_the_log() -> None:
    table = "public.a"
    cuts = [make_cut(cut, {table: 4}, halted=(table,)) for cut in (10, 20)]
    assert find_floor(cuts, aged=bound(99), started=[]) == Floor(bound(10), OLDEST_CUT)


def test_a_halted_target_of_entries_holds_the_log() -> None:
    target = "append/public.a"
    cuts = [make_cut(cut, {target: 4}, halted=(target,)) for cut in (10, 20)]
    floor = find_floor(cuts, aged=bound(99), started=[])
    assert floor == Floor(bound(4), f"{target}, which is behind at the newest cut")
    cuts.append(make_cut(30, {target: 30}))
    assert find_floor(cuts, aged=bound(99), started=[]) == Floor(bound(10), OLDEST_CUT)


def test_an_idle_table_does_not_hold_the_log() -> None:
    """History 24: the cut says that it is merged further than its own last commit."""
    cuts = [make_cut(10, {"public.idle": 10}), make_cut(20, {"public.idle": 20})]
    assert find_floor(cuts, aged=bound(99), started=[]) == Floor(bound(10), OLDEST_CUT)


def test_the_log_keeps_what_a_backfill_needs() -> None:
    cuts = [make_cut(10, {})]
    floor = find_floor(cuts, aged=bound(99), started=[("a", bound(6))])
    assert floor == Floor(bound(6), "the backfill of a")


def test_the_log_stays_for_the_retention() -> None:
    cuts = [make_cut(10, {})]
    assert find_floor(cuts, aged=bound(9), started=[]) == Floor(bound(9), RETENTION)
    assert find_floor(cuts, aged=None, started=[]) is None
