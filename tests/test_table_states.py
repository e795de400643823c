"""The states of a table and of a backfill move as their tables say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from cdc_core.table_states import (
    BACKFILL_MEANINGS,
    BACKFILL_MOVES,
    RECORDED_STATES,
    TABLE_MOVES,
    TABLE_ORIGINS,
    UNDER_WAY,
    BackfillState,
    IllegalMove,
    TableEvent,
    TableState,
    require_move,
    require_recorded,
)
from cdc_core.vocabulary import Lsn
from spark_jobs.lake import ledger
from spark_jobs.lake.completeness import CompletedBackfill, Completeness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Request, StateRecord, read_states, write_states
from tests.lakes import locate_lake

TABLE = "public.t"
CUT = Bound(1, Lsn(100))

LEGAL = {(old, move.to) for move in BACKFILL_MOVES for old in move.after}
ALL_PAIRS = set(product(BackfillState, BackfillState))

HALTED = StateRecord(TABLE, TableState.HALTED, "v was dropped", "fix", Bound(1, Lsn(50)))
CURABLE = replace(HALTED, curable=True)
STREAMING = StateRecord(TABLE, TableState.STREAMING)


@dataclass(frozen=True)
class Facts:
    """All that the state of a table follows from."""

    record: StateRecord | None
    has_rows: bool
    is_under_way: bool
    is_unseen: bool
    is_faulty: bool

    def derive_state(self) -> TableState:
        """Derive the state of a table as `walgate status` does."""
        if self.is_faulty:
            return TableState.HALTED
        done = {TABLE: [CompletedBackfill(Bound(1, Lsn(60)), self._find_end())]}
        completeness = Completeness(
            done if self.has_rows or self.is_unseen else {},
            frozenset({TABLE} if self.is_under_way else ()),
            () if self.has_rows else (Request(TABLE, "asked", Bound(1, Lsn(70))),),
        )
        return completeness.derive_state(TABLE, self.record, CUT).state

    def list_events(self) -> Iterator[tuple[TableEvent, Facts]]:
        """Give what may happen to a table, with the facts afterwards."""
        if not self.is_under_way:
            yield TableEvent.BACKFILL_BEGINS, replace(self, is_under_way=True)
        else:
            yield TableEvent.BACKFILL_ENDS, replace(self, is_under_way=False)
        read = replace(self, has_rows=True, is_under_way=False, is_unseen=True)
        yield TableEvent.TABLE_READ, read
        if self.record == CURABLE and self.is_unseen:
            yield TableEvent.HALT_REMAINS, replace(self, is_unseen=False)
        if self.record in {CURABLE, HALTED}:
            yield TableEvent.ROUND_FOLLOWS, replace(self, record=STREAMING)
        if self.record != CURABLE:
            yield TableEvent.ROUND_HALTS_CURABLY, replace(self, record=CURABLE)
        yield TableEvent.ROUND_HALTS, replace(self, record=HALTED)
        yield TableEvent.BACKFILL_REQUESTED, replace(self, has_rows=False)
        fault = TableEvent.FAULT_GONE if self.is_faulty else TableEvent.FAULT_FOUND
        yield fault, replace(self, is_faulty=not self.is_faulty)

    def _find_end(self) -> Bound:
        return Bound(1, Lsn(150 if self.is_unseen else 90))


def list_facts() -> Iterator[Facts]:
    records = (None, STREAMING, CURABLE, HALTED)
    flags = (False, True)
    for record, *rest in product(records, flags, flags, flags, flags):
        yield Facts(record, *rest)


def list_table_moves() -> set[tuple[TableState, TableEvent, TableState]]:
    return {
        (state, event, follower)
        for state, moves in TABLE_MOVES.items()
        for event, followers in moves.items()
        for follower in followers
    }


def test_the_moves_of_a_table_are_those_that_its_ledgers_lead_to() -> None:
    found = {
        (old, event, new)
        for facts in list_facts()
        for event, after in facts.list_events()
        if (old := facts.derive_state()) is not (new := after.derive_state())
    }
    assert found == list_table_moves()


def test_each_state_of_a_table_has_a_meaning_is_reached_and_ends() -> None:
    assert list(TABLE_ORIGINS) == list(TABLE_MOVES) == list(TableState)
    assert all(TABLE_ORIGINS.values())
    moves = list_table_moves()
    assert {follower for _, _, follower in moves} == {*TableState}
    assert {state for state, _, _ in moves} == {*TableState}
    assert {event for _, event, _ in moves} == {*TableEvent}


@pytest.mark.parametrize("state", TableState)
def test_only_a_state_that_merges_find_is_recorded(tmp_path: Path, state: TableState) -> None:
    lake = Lake(locate_lake(tmp_path / "lake"))
    write_states(lake, [HALTED])
    wrong = [STREAMING, StateRecord(TABLE, state)]
    if state in RECORDED_STATES:
        assert require_recorded(state) is state
        write_states(lake, wrong)
        assert read_states(lake)[TABLE].state is state
    else:
        with pytest.raises(IllegalMove, match=state):
            write_states(lake, wrong)
        assert read_states(lake) == {TABLE: HALTED}


@pytest.mark.parametrize("text", ["backfilling", "of a later version"])
def test_a_row_that_no_merge_writes_hides_no_state(tmp_path: Path, text: str) -> None:
    lake = Lake(locate_lake(tmp_path / "lake"))
    write_states(lake, [HALTED])
    row = {"table": TABLE, "state": text, "curable": False}
    ledger.append_numbered(lake.states, [row], ledger.STATES_SCHEMA)
    assert read_states(lake) == {TABLE: HALTED}


def test_each_state_of_a_backfill_has_a_meaning_and_is_reached_from_the_first() -> None:
    assert list(BACKFILL_MEANINGS) == list(BackfillState)
    first = {move.to for move in BACKFILL_MOVES if not move.after}
    assert first == {BackfillState.BEGUN}
    reached = set(first)
    while further := {new for old, new in LEGAL if old in reached} - reached:
        reached |= further
    assert reached == {*BackfillState}


def test_each_state_of_a_backfill_but_the_last_ends() -> None:
    assert [state for state in BackfillState if not state.next_states] == [BackfillState.DONE]


def test_a_backfill_under_way_can_be_stopped_paused_cancelled_and_done() -> None:
    ends = {
        *(BackfillState.STOPPED, BackfillState.PAUSED),
        *(BackfillState.CANCELLED, BackfillState.DONE),
    }
    assert all(ends <= state.next_states for state in UNDER_WAY)
    assert {state for state in BackfillState if BackfillState.RESUMED in state.next_states} == {
        *BackfillState
    } - {BackfillState.BEGUN, BackfillState.DONE}


@pytest.mark.parametrize(("old", "new"), sorted(LEGAL))
def test_a_legal_move_passes(old: BackfillState, new: BackfillState) -> None:
    require_move(old, new)


@pytest.mark.parametrize(("old", "new"), sorted(ALL_PAIRS - LEGAL))
def test_an_illegal_move_raises(old: BackfillState, new: BackfillState) -> None:
    with pytest.raises(IllegalMove, match=f"{new} .* must not follow .* {old}"):
        require_move(old, new)
