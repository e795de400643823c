"""The worker of a backfill: the real one, over simulated connections, threads and clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.request import BackfillRequest
from cdc_core.backfill.worker import Backfill
from cdc_core.capture.concealing import conceal_nothing
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.source.primary import History
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from tests.simulation.threads import Event
from tests.simulation.world import World

WORKER = "worker"


class _Lake:
    root = LocalPlace("lake")
    spool = Path("spool")


def _find_history() -> History:
    """What the newest epoch of the log says."""
    epoch = World.now.log.epochs[-1]
    return History(epoch.system_id, epoch.timeline)


def start_worker(world: World, table: str, *, chunk_rows: int = 1, parallel: int = 1) -> None:
    """Have a worker read a table from now on, or go on with what another has begun."""

    def work() -> None:
        wanted = BackfillRequest(
            source=cast("Any", None),
            find_history=_find_history,
            table=TableName("public", table),
            chunk_rows=chunk_rows,
            conceal=conceal_nothing,
        )
        clock = lambda: world.scheduler.clock  # noqa: E731 - the clock is one of many.
        backfill = Backfill(
            cast("Any", _Lake()),
            wanted,
            sharing=BackfillLimits(parallel, clock=clock),
            stop=cast("Any", Event()),
        )
        state = backfill.run()
        assert state is BackfillState.DONE

    world.scheduler.spawn(WORKER, work)


def restart_worker(world: World, table: str, *, chunk_rows: int = 1, parallel: int = 1) -> None:
    """End the worker wherever it is, and have another go on."""
    world.scheduler.kill(WORKER)
    world.server.disconnect_all(WORKER)
    world.touch()
    start_worker(world, table, chunk_rows=chunk_rows, parallel=parallel)
