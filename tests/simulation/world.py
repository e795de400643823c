"""A world: one server, one log, one clock, and the real parts of Walgate that run in it.

**Real**, imported and never copied: the collector of transactions, with the memory of changed keys
and the check of a replay; what a snapshot sees; the steps of a backfill and their parsing; the
worker of a backfill, its session, its plan, its register of open snapshots and what it reads again;
what the catalog makes of an announcement, and the store of relations; the rounds of a merge, the
choice of a cut and what it names, the plan of a table's changes, its halts and its renewal; the
fold on Arrow; what a reader of a cut folds.

**Simulated**: the server with xids, snapshots, locks and WAL (server.py), its stream
(walsender.py), connections and catalog (source.py), clients (clients.py), the log, the spool and
the ledger of backfills (staging.py), the lake's tables and cuts (tables.py, lake.py, frames.py),
threads (threads.py) and the clock (scheduler.py). The Spark fold is not real here: where the fold
on Arrow gives up, the judge's own interpreter (model.py) takes its place.

**Varied**: which actor is next at every step that others can see; how long a commit is streamed
before it is visible; whether a batch is staged early or late, and confirmed or not; where capture,
the worker or the merger dies, if one does; whether a minute passes; whether the source's clock
jumps by eleven minutes; UPDATE with and without a TOASTed value, INSERT, DELETE, a row that moves
to another key, TRUNCATE, ALTER … TYPE … USING; which tables a merge takes, in long or short rounds,
and at which table it fails.

**Worlds** (worlds.py): a small world is explored completely up to a number of deviations from the
plainest history; a larger world is played by seeds (histories.py). **Judged** (model.py): at every
LSN each row of the lake equals the source's row. After a backfill is done, or a cut has reached the
LSN, no row is missing. A table that is named as halted is not judged. A failure prints its choices,
not its seed. In a test with the fixture `_simulated`, call `histories.play(worlds.play_backfill,
Given(choices))` to play it again, step by step; `shrink` makes it short. mutations.py removes fixes
by name, to prove that the simulator would have found each bug.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_core.backfill import (
    completing,
    limits,
    open_snapshots,
    reading,
    request,
    session,
    worker,
)
from cdc_core.capture import run
from cdc_core.lake_storage.place import LakePlace
from cdc_core.staging import relations
from tests.simulation import threads
from tests.simulation.scheduler import Choices, Move, Scheduler
from tests.simulation.server import Server
from tests.simulation.staging import (
    SimulatedLedger,
    SimulatedLog,
    SimulatedSpool,
    SimulatedTail,
    keep_rows,
)
from tests.simulation.tables import Tables


class World:
    """Everything that actors share; `changes` counts the changes that a poll may see."""

    now: World

    def __init__(self, choices: Choices, tables: tuple[str, ...] = ("t",)) -> None:
        """Make a fresh world. From now on the patched parts use this one."""
        World.now = self
        self.scheduler = Scheduler(choices)
        self.server = Server(self.scheduler, tables)
        self.log = SimulatedLog()
        self.spool = SimulatedSpool()
        self.ledger = SimulatedLedger()
        self.tables = Tables()
        self.confirmed = self.server.lsn
        self.changes = 0
        self._ids = 0

    def touch(self) -> None:
        """Something has changed that a poll may see."""
        self.changes += 1

    def make_id(self) -> SimpleNamespace:
        """What uuid4 gives, in order."""
        self._ids += 1
        return SimpleNamespace(hex=f"{self._ids:032x}")

    def allow(self, label: str, make: Callable[[], None], *, times: int, process: str) -> None:
        """Add a move that may happen up to `times` times, and only while a process lives."""
        left = [times]

        def can_be() -> bool:
            return left[0] > 0 and self.scheduler.is_alive(process)

        def count() -> None:
            left[0] -= 1
            make()

        self.scheduler.moves.append(Move(label, can_be, count))


class _Clock:
    """The module `time`, by the world's clock."""

    @staticmethod
    def monotonic() -> float:
        return World.now.scheduler.clock


def _make_id() -> SimpleNamespace:
    return World.now.make_id()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch the real parts so that they use the newest world."""
    from tests.simulation import source  # noqa: PLC0415 - it imports this module.

    clock = _Clock()
    ids = SimpleNamespace(uuid4=_make_id)
    for module in (session, worker, reading, limits):
        monkeypatch.setattr(module, "time", clock)
    for module in (session, worker, completing):
        monkeypatch.setattr(module, "uuid", ids)
    for module in (session, reading, open_snapshots, limits):
        monkeypatch.setattr(module, "threading", threads)
    for module in (session, worker, run):
        monkeypatch.setattr(module, "ChunkFolder", lambda _: World.now.spool)
    monkeypatch.setattr(session, "Tail", lambda _: SimulatedTail(World.now.log))
    monkeypatch.setattr(session, "ThreadPoolExecutor", threads.Pool)
    monkeypatch.setattr(session, "wait", threads.wait)
    monkeypatch.setattr(request, "ChunkReader", source.SimulatedReader)
    monkeypatch.setattr(worker, "BackfillMarkConnection", lambda *_: source.SimulatedSteps())
    monkeypatch.setattr(worker, "BackfillLedger", lambda _: World.now.ledger)
    monkeypatch.setattr(worker, "Orders", lambda *_: SimpleNamespace(read=lambda: None))
    for module in (worker, completing):
        monkeypatch.setattr(module, "read_marks", lambda _, since: World.now.log.read_marks(since))
    monkeypatch.setattr(completing, "read_unsent", lambda _, *of: World.now.log.read_unsent(*of))
    monkeypatch.setattr(relations, "open_table", lambda *_: None)
    monkeypatch.setattr(relations, "reopen_table", lambda _: None)
    monkeypatch.setattr(relations, "read_rows", lambda _: list(World.now.log.relations))
    monkeypatch.setattr(relations, "append_rows", _append_relations)
    monkeypatch.setattr(relations, "delete_rows", _delete_relations)
    for name in ("walgate.backfill", "walgate.capture", "walgate.merge"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


def _append_relations(_table: Any, _folder: LakePlace, rows: Any) -> None:
    World.now.log.relations += keep_rows(rows)


def _delete_relations(_table: Any, _folder: LakePlace, *, epoch: int, since: int) -> None:
    log = World.now.log
    log.relations = [
        row for row in log.relations if row["epoch"] != epoch or row["first_lsn"] < since
    ]
