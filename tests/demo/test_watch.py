"""Which cut the demo checks next: the newest one, then any of the others, each once."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.vocabulary import Lsn
from orchestration.demo import watch as watch_module
from orchestration.demo.watch import Watch
from spark_jobs.lake.lake import Bound
from tests.deadline import wait_for

DEADLINE_S = 10
CUTS = [Bound(1, Lsn(lsn)) for lsn in (8, 16, 24, 32)]


def test_the_newest_cut_is_checked_first_and_every_cut_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts, checked = [*CUTS], list[Bound]()

    def check(_session: Any, _lake: Any, at: Bound) -> list[Any]:
        checked.append(at)
        return []

    monkeypatch.setattr(watch_module, "list_whole_cuts", lambda *_: cuts)
    monkeypatch.setattr(watch_module, "find_breaches", check)
    nothing: Any = None
    watch = Watch(nothing, nothing, [], seed=1)

    def check_one() -> None:
        watch.begin_next(wants_live=False)

        def is_over() -> bool:
            watch.take_findings()
            return not watch.is_checking

        wait_for(is_over, DEADLINE_S, "the check")

    check_one()
    assert checked == [CUTS[-1]]
    cuts.append(Bound(1, Lsn(40)))
    assert not watch.has_checked_since(cuts[-1])
    for _ in cuts:
        check_one()
    assert checked[1] == cuts[-1]
    assert sorted(checked) == cuts
    assert watch.cuts == len(cuts)
    assert watch.has_checked_since(cuts[-1])
