"""The states of a table and of its backfills: what each means, who sets it, and what may follow.

Pure values; no I/O, no clock. The tables of docs/states.md are generated from this module.

Only merges record the state of a table. All other states of a table are derived at each look from
the ledgers, so any state of a table can follow any other. Workers and people record the states of a
backfill. `require_move` refuses a state that must not follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class TableState(StrEnum):
    """What `walgate status` shows of a table: whether it has all rows and follows the log."""

    QUEUED = "queued"
    BACKFILLING = "backfilling"
    STREAMING = "streaming"
    HALTED = "halted"


class BackfillState(StrEnum):
    """What a backfill is doing, as `ledger/backfills` has it."""

    BEGUN = "begun"
    HELD = "held"
    RUNNING = "running"
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    DONE = "done"

    @property
    def is_running(self) -> bool:
        """Whether the backfill goes on, if its worker lives."""
        return self in _RUNNING

    @property
    def is_lasting(self) -> bool:
        """Whether only a move of `BACKFILL_MOVES` ends it, whatever else a late row says."""
        return self in {BackfillState.PAUSED, BackfillState.CANCELLED, BackfillState.DONE}

    @property
    def next_states(self) -> frozenset[BackfillState]:
        """The states that may follow; none if this state never ends."""
        return frozenset(move.to for move in BACKFILL_MOVES if self in move.after)


class IllegalMove(ValueError):
    """A process is about to record a state that must not be recorded then. Nothing has changed."""


class TableEvent(StrEnum):
    """What ends a state of a table, as docs/states.md says it."""

    BACKFILL_BEGINS = "A backfill of the table begins or goes on."
    BACKFILL_ENDS = (
        "The backfill is paused, stopped or cancelled; or it is done, and does not make the table"
        " complete."
    )
    TABLE_READ = "A whole backfill that began late enough is done."
    HALT_REMAINS = "The halt remains, although a merge has passed the end of the backfill."
    BACKFILL_REQUESTED = "A process records a request for a whole backfill."
    ROUND_FOLLOWS = "A round follows the table again, and records `streaming`."
    ROUND_HALTS = "A round records a halt that no backfill ends."
    ROUND_HALTS_CURABLY = "A round records a halt that a whole backfill ends."
    FAULT_FOUND = (
        "`walgate status` finds the table damaged, older than its cut, not published or not"
        " readable."
    )
    FAULT_GONE = "`walgate status` no longer finds such a fault."


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """One way in which a table comes to a state: what it then means, who sets it, where it is."""

    meaning: str
    set_by: str
    stored_in: str


class Recorder(StrEnum):
    """Who records a state of a backfill."""

    WORKER = "worker"
    NEXT_RUN = "worker of the next run"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class BackfillMove:
    """A move of a backfill to a state: who records it, in which code, when, after which states.

    If `after` is empty, the backfill has no state before.
    """

    to: BackfillState
    by: Recorder
    place: str
    when: str
    after: frozenset[BackfillState]


# `ledger/states` has only these. A row that is `queued` there is a request for a backfill.
RECORDED_STATES = frozenset({TableState.STREAMING, TableState.HALTED})

_DERIVED_BY = "`spark_jobs/lake/completeness.py::Completeness.derive_state`, at each look"
_STATUS = "`orchestration/status/status.py::_tell_state`, at each look"
_ROUND = "A round: `spark_jobs/merge/rounds.py::_write_states`"
TABLE_ORIGINS: Mapping[TableState, tuple[StateOrigin, ...]] = {
    TableState.QUEUED: (
        StateOrigin(
            "The table may lack rows, or a whole backfill would end its halt. No backfill of it is"
            " under way.",
            _DERIVED_BY,
            "Not stored. It follows from `ledger/backfills` and `ledger/states`.",
        ),
    ),
    TableState.BACKFILLING: (
        StateOrigin(
            "As `queued`, but the newest recorded state of any backfill of the table is `begun`,"
            " `held`, `running` or `resumed`; or a finished backfill waits for the merge that ends"
            " the halt.",
            _DERIVED_BY,
            "Not stored. It follows from `ledger/backfills`, `ledger/states` and `ledger/cuts`.",
        ),
        StateOrigin(
            "As `queued`, but a process of this host runs the newest backfill of the table. Only"
            " `walgate status` shows this.",
            _STATUS,
            "Not stored.",
        ),
    ),
    TableState.STREAMING: (
        StateOrigin(
            "The log has all rows of the table, and the table follows the log.",
            f"{_ROUND}. Without a recorded state: {_DERIVED_BY}",
            "`ledger/states`",
        ),
    ),
    TableState.HALTED: (
        StateOrigin(
            "The table stays just before the first transaction that it cannot follow.",
            _ROUND,
            "`ledger/states`, with reason, fix, LSN and `curable`; and `halted` of each cut.",
        ),
        StateOrigin(
            "The table is damaged, older than its cut, or not published; or it cannot be read,"
            " because it has no key or the role lacks a right. Only `walgate status` shows this.",
            _STATUS,
            "Not stored.",
        ),
    ),
}

_UNLESS_HALTED = {
    TableEvent.ROUND_HALTS: (TableState.HALTED,),
    TableEvent.FAULT_FOUND: (TableState.HALTED,),
}
# By state: the events that end it, and the states that then follow. If several can follow, the
# ledgers decide: each look derives the state from them.
TABLE_MOVES: Mapping[TableState, Mapping[TableEvent, tuple[TableState, ...]]] = {
    TableState.QUEUED: {
        TableEvent.BACKFILL_BEGINS: (TableState.BACKFILLING,),
        # A worker may have read all rows before it sees that a person has paused or cancelled it.
        TableEvent.TABLE_READ: (TableState.STREAMING, TableState.BACKFILLING),
        TableEvent.ROUND_FOLLOWS: (TableState.STREAMING,),
        # A backfill that began too early for a request may end this halt, and waits for the merge.
        TableEvent.ROUND_HALTS_CURABLY: (TableState.BACKFILLING,),
        **_UNLESS_HALTED,
    },
    TableState.BACKFILLING: {
        TableEvent.BACKFILL_ENDS: (TableState.QUEUED,),
        TableEvent.TABLE_READ: (TableState.STREAMING,),
        TableEvent.HALT_REMAINS: (TableState.QUEUED,),
        TableEvent.ROUND_FOLLOWS: (TableState.STREAMING, TableState.QUEUED),
        **_UNLESS_HALTED,
    },
    TableState.STREAMING: {
        TableEvent.BACKFILL_REQUESTED: (TableState.QUEUED, TableState.BACKFILLING),
        TableEvent.ROUND_HALTS_CURABLY: (TableState.QUEUED, TableState.BACKFILLING),
        **_UNLESS_HALTED,
    },
    TableState.HALTED: {
        TableEvent.ROUND_FOLLOWS: (
            TableState.STREAMING,
            TableState.QUEUED,
            TableState.BACKFILLING,
        ),
        TableEvent.ROUND_HALTS_CURABLY: (TableState.QUEUED, TableState.BACKFILLING),
        TableEvent.FAULT_GONE: (
            TableState.STREAMING,
            TableState.QUEUED,
            TableState.BACKFILLING,
        ),
    },
}

BACKFILL_MEANINGS: Mapping[BackfillState, str] = {
    BackfillState.BEGUN: "Capture remembers changed keys, and the start position is known.",
    BackfillState.HELD: "Nothing is read now. The row has the reason.",
    BackfillState.RUNNING: "Reading goes on.",
    BackfillState.PAUSED: "The worker has no lock, no connection and no changed keys.",
    BackfillState.RESUMED: "The backfill goes on with what the log does not have yet.",
    BackfillState.STOPPED: "The worker has ended. After an error, the row has the reason.",
    BackfillState.CANCELLED: "The worker ends. Dagster does not launch it again by itself.",
    BackfillState.DONE: (
        "The log has every range. For a whole table the row has the end LSN of the sweep."
    ),
}

# What `walgate status` shows if the ledger has the backfill as under way and no process runs it.
INTERRUPTED = "interrupted"

_RUNNING = frozenset({BackfillState.BEGUN, BackfillState.RUNNING, BackfillState.RESUMED})
# The backfill needs no order and no new run to go on, unless its worker was killed.
UNDER_WAY = _RUNNING | {BackfillState.HELD}

_RUN_SESSION = "`cdc_core/backfill/worker.py::Backfill._run_session`"
_NOTE_HELD = "`cdc_core/backfill/worker.py::Backfill._note_held`"
_RUN_AS = "`cdc_core/backfill/worker.py::Backfill._run_as`"
_GIVE_ORDER = "`orchestration/backfill/orders.py::give_order`"
BACKFILL_MOVES = (
    BackfillMove(
        BackfillState.BEGUN,
        Recorder.WORKER,
        _RUN_SESSION,
        "Capture has answered the worker's first request.",
        frozenset(),
    ),
    BackfillMove(
        BackfillState.HELD,
        Recorder.WORKER,
        _NOTE_HELD,
        "Reading must wait: for the source, for capture, or for rows that keep changing.",
        UNDER_WAY,
    ),
    BackfillMove(
        BackfillState.RUNNING,
        Recorder.WORKER,
        _NOTE_HELD,
        "The reason to wait is gone.",
        frozenset({BackfillState.HELD}),
    ),
    BackfillMove(
        BackfillState.PAUSED,
        Recorder.PERSON,
        _GIVE_ORDER,
        "A person orders a pause.",
        UNDER_WAY | {BackfillState.STOPPED},
    ),
    BackfillMove(
        BackfillState.RESUMED,
        Recorder.PERSON,
        _GIVE_ORDER,
        "A person ends the pause.",
        frozenset({BackfillState.PAUSED}),
    ),
    BackfillMove(
        BackfillState.RESUMED,
        Recorder.NEXT_RUN,
        _RUN_AS,
        "The next run goes on with the backfill, also after a kill.",
        frozenset(
            {
                *(BackfillState.HELD, BackfillState.RUNNING, BackfillState.RESUMED),
                *(BackfillState.PAUSED, BackfillState.STOPPED, BackfillState.CANCELLED),
            }
        ),
    ),
    BackfillMove(
        BackfillState.STOPPED,
        Recorder.WORKER,
        _RUN_AS,
        "The worker was asked to stop, or an error ended it.",
        UNDER_WAY,
    ),
    BackfillMove(
        BackfillState.CANCELLED,
        Recorder.PERSON,
        _GIVE_ORDER,
        "A person orders the end.",
        UNDER_WAY | {BackfillState.STOPPED, BackfillState.PAUSED},
    ),
    BackfillMove(
        BackfillState.DONE,
        Recorder.WORKER,
        _RUN_SESSION,
        "The log has every range; also if a person has paused or cancelled the backfill and the"
        " worker has not seen that yet.",
        UNDER_WAY | {BackfillState.PAUSED, BackfillState.CANCELLED},
    ),
)


def require_recorded(state: TableState) -> TableState:
    """Return the state of a table if a process may record it. Raises: IllegalMove."""
    if state not in RECORDED_STATES:
        raise IllegalMove(f"the state {state} of a table is derived; no process records it")
    return state


def require_move(old: BackfillState, new: BackfillState) -> None:
    """Refuse a state of a backfill that must not follow another. Raises: IllegalMove."""
    if new not in old.next_states:
        raise IllegalMove(f"the state {new} of a backfill must not follow the state {old}")
