"""Ledgers keep the order in which they were written, whatever the clock of the writer says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from deltalake import DeltaTable

from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.spooled import WHOLE
from cdc_core.staging import backfills, verifications
from cdc_core.staging.backfills import BackfillLedger, Begun
from cdc_core.staging.orders import Orders
from cdc_core.staging.verifications import DIFFERENT, EQUAL, VerificationLedger, Verified
from cdc_core.table_states import BackfillState, TableState
from cdc_core.vocabulary import Lsn, Position, TableName
from spark_jobs.lake import ledger
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import (
    Cut,
    StateRecord,
    find_cut,
    queue_tables,
    read_requests,
    read_states,
    write_cut,
    write_states,
)
from tests.lakes import locate_lake, path_of

T = TableName("public", "t")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODULES = (backfills, verifications, ledger)


class Clock:
    """The wall clock of every ledger; it goes where it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, modules: tuple[ModuleType, ...]) -> None:
        self.time = NOW
        for module in modules:
            monkeypatch.setattr(module, "datetime", self)

    def now(self, _: object) -> datetime:
        return self.time

    def jump(self, hours: int) -> None:
        self.time += timedelta(hours=hours)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, MODULES)


def begin(root: Path, start: int) -> Begun:
    begun = Begun(f"from-{start}", T, Position(1, Lsn(start), 0))
    BackfillLedger(locate_lake(root)).record_begun(begun, 10)
    return begun


def test_a_backfill_that_began_in_the_future_is_done_all_the_same(
    tmp_path: Path, clock: Clock
) -> None:
    clock.jump(24)
    begun = begin(tmp_path, 40)
    clock.jump(-24)
    BackfillLedger(locate_lake(tmp_path)).record_state(begun, BackfillState.DONE, swept=Lsn(80))
    (report,) = BackfillLedger(locate_lake(tmp_path)).read_all()
    assert report.state is BackfillState.DONE
    backfilled = read_completeness(Lake(locate_lake(tmp_path)))
    assert not backfilled.under_way
    assert backfilled.find_incomplete("public.t") is None


def test_the_newest_backfill_is_the_one_that_was_begun_last(tmp_path: Path, clock: Clock) -> None:
    clock.jump(24)
    first = begin(tmp_path, 40)
    clock.jump(-24)
    second = begin(tmp_path, 60)
    BackfillLedger(locate_lake(tmp_path)).record_state(first, BackfillState.DONE)
    found = BackfillLedger(locate_lake(tmp_path)).find_unfinished(T, WHOLE)
    assert found is not None
    assert found.begun == second


def test_the_last_order_counts_whatever_the_clock_says(tmp_path: Path, clock: Clock) -> None:
    begun = begin(tmp_path, 40)
    orders, own = Orders(locate_lake(tmp_path), begun.id), BackfillLedger(locate_lake(tmp_path))
    clock.jump(24)
    own.record_state(begun, BackfillState.PAUSED)
    clock.jump(-24)
    own.record_state(begun, BackfillState.RESUMED)
    assert orders.read() is BackfillState.RESUMED
    assert own.read_newest()["public.t"].state is BackfillState.RESUMED


def test_an_older_equal_hides_no_later_different(tmp_path: Path, clock: Clock) -> None:
    own = VerificationLedger(locate_lake(tmp_path))
    clock.jump(24)
    own.record([Verified(T, 1, Lsn(100), EQUAL)])
    clock.jump(-24)
    own.record([Verified(T, 1, Lsn(200), DIFFERENT)])
    standing = own.read_table_verifications()["public.t"]
    assert (standing.result, standing.lsn) == (DIFFERENT, None)


def test_a_verification_at_a_greater_lsn_counts_though_it_was_written_first(
    tmp_path: Path,
) -> None:
    own = VerificationLedger(locate_lake(tmp_path))
    own.record([Verified(T, 2, Lsn(100), EQUAL)])
    own.record([Verified(T, 1, Lsn(300), DIFFERENT)])
    own.record([Verified(T, 2, Lsn(90), DIFFERENT)])
    standing = own.read_table_verifications()["public.t"]
    assert (standing.result, standing.epoch, standing.lsn) == (EQUAL, 2, Lsn(100))


def test_the_last_state_of_a_table_counts_whatever_the_clock_says(
    tmp_path: Path, clock: Clock
) -> None:
    lake = Lake(locate_lake(tmp_path))
    clock.jump(24)
    write_states(lake, [StateRecord("public.t", TableState.STREAMING)])
    queue_tables(lake, [T], reason="first", since=Bound(1, Lsn(1)))
    clock.jump(-24)
    write_states(lake, [StateRecord("public.t", TableState.HALTED, "a column was dropped")])
    queue_tables(lake, [T], reason="second", since=Bound(1, Lsn(2)))
    assert read_states(lake)["public.t"].state is TableState.HALTED
    assert [request.reason for request in read_requests(lake)] == ["first", "second"]


def test_two_cuts_at_one_bound_count_in_their_order(tmp_path: Path) -> None:
    lake, bound = Lake(locate_lake(tmp_path)), Bound(1, Lsn(100))
    for run, hours in (("first", 24), ("second", 0)):
        write_cut(lake, Cut(bound, None, NOW + timedelta(hours=hours), run))
    cut = find_cut(lake)
    assert cut is not None
    assert cut.run_id == "second"


def test_the_order_outlives_a_ledger_that_is_compacted(tmp_path: Path) -> None:
    lake = Lake(locate_lake(tmp_path))
    for state in (TableState.HALTED, TableState.STREAMING, TableState.HALTED):
        write_states(lake, [StateRecord("public.t", state, "why")])
    DeltaTable(path_of(lake.states)).optimize.compact()
    write_states(lake, [StateRecord("public.t", TableState.STREAMING)])
    DeltaTable(path_of(lake.states)).optimize.compact()
    assert read_states(lake)["public.t"].state is TableState.STREAMING


def test_rows_that_many_write_at_once_have_numbers_of_their_own(tmp_path: Path) -> None:
    begun, own = begin(tmp_path, 40), BackfillLedger(locate_lake(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: own.record_state(begun, BackfillState.HELD), range(24)))
    ledger = open_delta(locate_lake(tmp_path) / "ledger" / "backfills")
    numbers = ledger.to_pyarrow_table(columns=["number"])["number"].to_pylist()
    assert len({*numbers}) == 25
