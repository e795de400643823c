"""Decides which cuts are kept.

A round rewrites each file with a changed key. If it writes a small table whole, and a round comes
each second, a week of versions takes 600,000 times the table's size. So cuts are thinned as they
get older. Every LSN at or above the oldest kept cut can still be read, from the cut below it and
the log.

Intervals begin at multiples of their length since 1970, and the newest cut of an interval is kept.
So it does not matter when and how often cuts are thinned. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cdc_core.lake_storage.cleaning import COMMIT_LIFE_S
from cdc_core.vocabulary import UNIX_START
from spark_jobs.lake.lake import Bound


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long cuts are kept, and how long the files of dropped cuts stay (`grace`).

    All cuts younger than `every_cut` are kept; of those younger than `often`, one for each
    `often_interval`; of those younger than `retention`, one for each `seldom_interval`. Commits of
    `ledger/cuts` itself go after `commit_life`.
    """

    retention: timedelta = timedelta(days=7)
    grace: timedelta = timedelta(hours=6)
    every_cut: timedelta = timedelta(minutes=15)
    often: timedelta = timedelta(days=1)
    often_interval: timedelta = timedelta(minutes=10)
    seldom_interval: timedelta = timedelta(hours=1)
    commit_life: timedelta = timedelta(seconds=COMMIT_LIFE_S)


@dataclass(frozen=True, slots=True)
class DatedCut:
    """The bound of a cut, and when it was written."""

    bound: Bound
    created_at: datetime


def choose_dropped(
    cuts: Sequence[DatedCut], *, now: datetime, keeping: Keeping, leased: Iterable[Bound] = ()
) -> set[Bound]:
    """Choose the cuts to drop.

    The newest cut is always kept, and so is the newest cut at or below each bound in `leased`.
    """
    if not cuts:
        return set()
    ordered = sorted(cuts, key=lambda cut: cut.bound)
    kept = {ordered[-1].bound, *_find_leased(ordered, leased)}
    by_often = _find_newest(ordered, keeping.often_interval)
    by_seldom = _find_newest(ordered, keeping.seldom_interval)
    for cut in ordered:
        age = now - cut.created_at
        is_kept = (
            age < keeping.every_cut
            or (age < keeping.often and cut.bound in by_often)
            or (age < keeping.retention and cut.bound in by_seldom)
        )
        kept |= {cut.bound} if is_kept else set()
    return {cut.bound for cut in ordered} - kept


def _find_newest(ordered: Sequence[DatedCut], interval: timedelta) -> set[Bound]:
    """The newest cut of each interval."""
    # A later cut takes the place of an earlier one.
    newest = {(cut.created_at - UNIX_START) // interval: cut.bound for cut in ordered}
    return set(newest.values())


def _find_leased(ordered: Sequence[DatedCut], leased: Iterable[Bound]) -> Collection[Bound]:
    found = set()
    for bound in leased:
        below = [cut.bound for cut in ordered if cut.bound <= bound]
        found |= {below[-1]} if below else set()
    return found
