"""From which LSN on a table is whole, as the ledgers tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.staging.backfills import BackfillLedger, Begun
from cdc_core.table_states import BackfillState, TableState
from cdc_core.vocabulary import Lsn, Position, TableName
from spark_jobs.lake.completeness import (
    NEVER,
    CompletedBackfill,
    Incomplete,
    read_completeness,
)
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import (
    StateRecord,
    queue_tables,
    read_requests,
    read_states,
    write_states,
)
from tests.lakes import locate_lake

T = TableName("public", "t")
NAME = str(T)
QUEUED, BACKFILLING = TableState.QUEUED, TableState.BACKFILLING


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Lend a lake of which nothing is there."""
    return Lake(locate_lake(tmp_path / "lake"))


def begin(lake: Lake, start: int, *, epoch: int = 1) -> Begun:
    begun = Begun(f"{epoch}-{start}", T, Position(epoch, Lsn(start), 0))
    BackfillLedger(lake.root).record_begun(begun, 10)
    return begun


def finish(lake: Lake, begun: Begun, swept: int | None) -> None:
    lsn = None if swept is None else Lsn(swept)
    BackfillLedger(lake.root).record_state(begun, BackfillState.DONE, swept=lsn)


def lack_at(lake: Lake, lsn: int, *, epoch: int = 1) -> Incomplete | None:
    return read_completeness(lake).find_incomplete(NAME, Bound(epoch, Lsn(lsn)))


def test_a_table_lacks_rows_until_the_end_of_its_whole_backfill(lake: Lake) -> None:
    assert lack_at(lake, 100) == Incomplete(QUEUED, NEVER)
    begun = begin(lake, 40)
    assert lack_at(lake, 100) == Incomplete(BACKFILLING, NEVER)
    BackfillLedger(lake.root).record_state(begun, BackfillState.STOPPED)
    assert lack_at(lake, 100) == Incomplete(QUEUED, NEVER)
    finish(lake, begun, 80)
    assert lack_at(lake, 79) == Incomplete(QUEUED, NEVER), "the sweep is above it"
    assert lack_at(lake, 80) is None
    assert read_completeness(lake).find_incomplete(NAME) is None
    assert read_completeness(lake).find_newest(NAME) == CompletedBackfill(
        Bound(1, Lsn(40)), Bound(1, Lsn(80))
    )


def test_a_backfill_without_a_sweep_of_the_whole_table_makes_nothing_whole(lake: Lake) -> None:
    finish(lake, begin(lake, 40), None)
    assert lack_at(lake, 100) == Incomplete(QUEUED, NEVER)
    assert read_completeness(lake).find_newest(NAME) is None


def test_what_was_asked_for_is_done_by_a_backfill_that_began_above_it(lake: Lake) -> None:
    finish(lake, begin(lake, 40), 80)
    queue_tables(lake, [T], reason="the slot was lost", since=Bound(2, Lsn(8)))
    assert lack_at(lake, 100) is None, "in the epoch before"
    assert lack_at(lake, 10, epoch=2) == Incomplete(QUEUED, "the slot was lost")
    assert read_completeness(lake).find_incomplete(NAME) == Incomplete(QUEUED, "the slot was lost")
    # What merges say of the table meanwhile takes nothing back.
    write_states(lake, [StateRecord(NAME, TableState.STREAMING)])
    assert read_completeness(lake).find_incomplete(NAME) is not None
    finish(lake, begin(lake, 16, epoch=2), 24)
    assert lack_at(lake, 23, epoch=2) == Incomplete(QUEUED, "the slot was lost")
    assert lack_at(lake, 24, epoch=2) is None
    queue_tables(lake, [], reason="nothing", since=Bound(2, Lsn(30)))
    assert [request.since for request in read_requests(lake)] == [Bound(2, Lsn(8))]


def test_states_and_requests_are_told_apart(lake: Lake) -> None:
    halted = StateRecord(
        NAME, TableState.HALTED, "column v was dropped", "fix", Bound(1, Lsn(16)), curable=True
    )
    write_states(lake, [halted])
    queue_tables(lake, [T], reason="asked", since=Bound(1, Lsn(20)))
    assert read_states(lake) == {NAME: halted}
    write_states(lake, [StateRecord(NAME, TableState.STREAMING)])
    assert read_states(lake)[NAME].state == "streaming"


def test_a_halt_that_a_copy_cures_asks_for_one_until_a_merge_has_seen_it(lake: Lake) -> None:
    finish(lake, begin(lake, 8), 16)
    halted = StateRecord(
        NAME, TableState.HALTED, "v was dropped", "fix", Bound(1, Lsn(32)), curable=True
    )

    def need_at(cut: int) -> Incomplete | None:
        return read_completeness(lake).find_backfill_need(NAME, halted, Bound(1, Lsn(cut)))

    assert (
        read_completeness(lake).find_backfill_need(NAME, StateRecord(NAME, TableState.STREAMING))
        is None
    )
    assert need_at(40) == Incomplete(QUEUED, "v was dropped")
    begun = begin(lake, 48)
    assert need_at(40) == Incomplete(BACKFILLING, "v was dropped")
    finish(lake, begun, 64)
    assert need_at(40) == Incomplete(BACKFILLING, "v was dropped", is_read=True), (
        "a merge will tell"
    )
    assert need_at(64) == Incomplete(QUEUED, "v was dropped"), (
        "it did not cure it: altered meanwhile"
    )
    told = read_completeness(lake).derive_state(NAME, halted, Bound(1, Lsn(64)))
    assert (told.state, told.reason, told.fix) == ("queued", "v was dropped", "fix")
    # What it does not cure asks for none.
    keyless = StateRecord(NAME, TableState.HALTED, "it has no key", "fix", Bound(1, Lsn(32)))
    assert read_completeness(lake).find_backfill_need(NAME, keyless) is None
    assert read_completeness(lake).derive_state(NAME, keyless) == keyless
