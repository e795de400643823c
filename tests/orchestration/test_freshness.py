"""Freshness of small lakes, whose commits and cuts are dated by the test."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc_core.vocabulary import Lsn
from orchestration.status.freshness import Delay, Freshness, measure_freshness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Cut, write_cut
from tests.lakes import locate_lake, path_of
from tests.spark.log_writer import EPOCH_START, LogWriter
from tests.spark.relations import Entry, insert, make_relation, mark

TABLE = make_relation("t", "k int4")
OTHER = make_relation("other", "k int4")


class DatedLake:
    """A lake whose times are given in seconds from the first epoch's start."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(locate_lake(folder / "lake"))
        self.log = LogWriter(self.lake)
        self.log.begin_epoch(16)

    def add(self, committed_s: float, *entries: Entry) -> Bound:
        """Add a transaction that the source committed at a time; its bound."""
        at = EPOCH_START + timedelta(seconds=committed_s)
        end = self.log.add(
            [(relation, entry | {"committed_at": at}) for relation, entry in entries]
        )
        return Bound(self.log.epoch, Lsn(end))

    def stage(self, staged_s: float, *, repeat: int = 0) -> None:
        """Commit what was added, at a time."""
        self.log.commit(repeat)
        version = DeltaTable(path_of(self.lake.changes)).version()
        commit = self.lake.changes / "_delta_log" / f"{version:020}.json"
        at = EPOCH_START.timestamp() + staged_s
        os.utime(path_of(commit), (at, at))

    def cut(self, bound: Bound, created_s: float) -> None:
        """Write a cut, at a time."""
        write_cut(self.lake, Cut(bound, None, EPOCH_START + timedelta(seconds=created_s), "run"))


@pytest.fixture
def dated(tmp_path: Path) -> DatedLake:
    return DatedLake(tmp_path)


def test_a_lake_without_a_log_has_no_freshness(dated: DatedLake) -> None:
    assert measure_freshness(dated.lake) == Freshness(None, None)


def test_each_transaction_is_measured_once_to_its_commit_and_to_the_first_cut_that_holds_it(
    dated: DatedLake,
) -> None:
    dated.add(1.0, insert(TABLE, "1"), insert(OTHER, "1"), insert(TABLE, "2"))
    first = dated.add(2.0, insert(OTHER, "3"), mark(TABLE))
    dated.add(2.5, mark(TABLE))
    dated.stage(5.0, repeat=1)
    second = dated.add(6.0, insert(TABLE, "4"))
    last = dated.add(7.0, mark(TABLE))
    dated.stage(8.0)
    assert measure_freshness(dated.lake) == Freshness(Delay(3, 3.0, 4.0, 4.0), None)
    dated.cut(first, 10.0)
    assert measure_freshness(dated.lake).tables == Delay(2, 8.0, 9.0, 9.0)
    dated.cut(last, 20.5)
    dated.cut(last, 30.0)
    assert measure_freshness(dated.lake).tables == Delay(3, 9.0, 14.5, 14.5)
    assert measure_freshness(dated.lake, first) == Freshness(
        Delay(1, 2.0, 2.0, 2.0), Delay(1, 14.5, 14.5, 14.5)
    )
    assert measure_freshness(dated.lake, second) == Freshness(None, None)


def test_a_bound_inside_a_commit_leaves_out_what_ends_at_or_below_it(dated: DatedLake) -> None:
    bounds = [dated.add(at, insert(TABLE, "1")) for at in (1.0, 2.0, 3.0)]
    dated.stage(4.0)
    assert measure_freshness(dated.lake, bounds[0]).live == Delay(2, 1.0, 2.0, 2.0)


def test_a_compaction_of_the_log_stages_nothing_again(dated: DatedLake) -> None:
    bounds = []
    for at in (1.0, 2.0):
        bounds.append(dated.add(at, insert(TABLE, "1")))
        dated.stage(at + 3)
    before = measure_freshness(dated.lake)
    assert before.live == Delay(2, 3.0, 3.0, 3.0)
    DeltaTable(path_of(dated.lake.changes)).optimize.compact()
    assert measure_freshness(dated.lake) == before
    assert measure_freshness(dated.lake, bounds[0]).live == Delay(1, 3.0, 3.0, 3.0)


def test_a_cut_of_the_next_epoch_holds_all_of_the_last_one(dated: DatedLake) -> None:
    dated.log.lsn = 4096
    dated.add(1.0, insert(TABLE, "1"))
    dated.stage(2.0)
    dated.log.begin_epoch(16)
    bound = dated.add(3.0, insert(TABLE, "2"))
    dated.stage(4.0)
    dated.cut(bound, 5.0)
    assert measure_freshness(dated.lake) == Freshness(
        Delay(2, 1.0, 1.0, 1.0), Delay(2, 2.0, 4.0, 4.0)
    )
    assert measure_freshness(dated.lake, Bound(1, Lsn(8192))).live == Delay(1, 1.0, 1.0, 1.0)


def test_percentiles_are_delays_of_transactions(dated: DatedLake) -> None:
    for at in range(100):
        dated.add(float(at), insert(TABLE, str(at)))
    dated.stage(100.0)
    assert measure_freshness(dated.lake).live == Delay(100, 50.0, 95.0, 100.0)
