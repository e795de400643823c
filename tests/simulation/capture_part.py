"""Capture: the real collector, fed by the simulated stream and staged into the simulated log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cdc_core.capture.known_relations import KnownRelations
from cdc_core.capture.run import _find_spooled
from cdc_core.capture.transactions import Collector
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.protocol.messages import Announcement
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.relations import RelationStore
from cdc_core.vocabulary import Lsn, Relation
from tests.simulation import source
from tests.simulation.walsender import Walsender
from tests.simulation.world import World

CAPTURE = "capture"


def start_capture(world: World) -> None:
    """Have capture run from now on."""
    world.scheduler.spawn(CAPTURE, lambda: _Session(world).run())


def restart_capture(world: World) -> None:
    """End capture wherever it is, and have another begin."""
    world.scheduler.kill(CAPTURE)
    start_capture(world)


class _Session:
    """One session of capture: from the slot it takes until it dies."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log = world.log
        self._relations = RelationStore(LocalPlace("lake"))
        self._known = KnownRelations(self._relations.latest)

    def run(self) -> None:
        world = self._world
        epoch = self._log.epochs[-1]
        staged = self._log.staged[epoch.epoch]
        world.spool.empty()
        self._relations.reload((epoch.epoch, Lsn(staged)))
        self._relations.remove_unlanded(epoch.epoch, Lsn(staged))
        collector = Collector(
            staged=Lsn(staged),
            expected=self._log.read_transactions(epoch, world.confirmed),
            complete=self._complete,
            log_time_us=0,
            spooled=_find_spooled(cast("Any", _Settings()), self._known),
        )
        stream = Walsender(world.server, world.confirmed)
        while True:
            self._go_on(collector, stream, epoch)

    def _go_on(self, collector: Collector, stream: Walsender, epoch: Epoch) -> None:
        scheduler = self._world.scheduler
        is_more = False
        if collector.closed_transactions and stream.has_more:
            is_more = bool(scheduler.choose(["stages", "receives more before it stages"]))
        if collector.closed_transactions and not is_more:
            self._stage(collector, epoch)
            return
        scheduler.wait("receives", lambda: stream.has_more)
        committed, frames = stream.read()
        scheduler.note(f"transaction {committed.xid}: {describe(committed.changes)}")
        taken = 0
        while taken < len(frames):
            taken = collector.feed(frames, taken)

    def _stage(self, collector: Collector, epoch: Epoch) -> None:
        batch = collector.take()
        assert batch is not None
        self._relations.store(batch.relations, epoch=epoch.epoch)
        self._world.scheduler.pause(f"lands what ends at {batch.end_lsn}")
        self._log.append(batch, epoch)
        self._world.touch()
        if not self._world.scheduler.choose(["confirms it", "does not come to confirm it"]):
            self._world.confirmed = int(batch.end_lsn)

    def _complete(self, announcement: Announcement, xid: int) -> Relation:
        previous = self._known.find(announcement.oid)
        relation = source.complete(self._world.server, announcement, previous=previous, xid=xid)
        self._known.note(relation)
        return relation


class _Settings:
    """Settings without rules. Only the spool of the lake is used, and the world replaces it."""

    lake = SimpleNamespace(spool=Path("spool"))
    tables: Mapping[str, Any] = {}
    hash_key = None


def describe(changes: tuple[Any, ...]) -> str:
    """What a transaction did, for a person."""
    return ", ".join(
        f"{change.kind} {change.message or change.new or change.old or change.table}"
        for change in changes
    )
