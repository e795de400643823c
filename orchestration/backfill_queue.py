"""The tables that wait for a whole backfill, as the publication and the ledgers tell it.

Level-triggered: nothing is taken from the queue. A table is in it for as long as it may lack rows,
so that no crash loses its turn.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from cdc_core.settings import Settings
from cdc_core.source.backfillable import find_hindrances
from cdc_core.source.chunks import estimate_size
from cdc_core.source.connection import open_briefly
from cdc_core.staging.backfills import BackfillLedger
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import TableName
from spark_jobs.backfilled import read_backfilled
from spark_jobs.lake import Lake
from spark_jobs.ledger import find_cut, read_states


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table that must be read whole, why, and the bytes it has at the source."""

    table: TableName
    reason: str
    size: int


def read_queue(settings: Settings) -> list[Waiting]:
    """The tables that wait, smallest first; none that is being read now.

    Raises: SourceError, StagingError.
    """
    lake, source = Lake.of(settings), settings.source
    with staging_errors("read the ledgers"):
        backfilled, states, cut = read_backfilled(lake), read_states(lake), find_cut(lake)
    merged = None if cut is None else cut.bound
    waiting: list[Waiting] = []
    with closing(open_briefly(source, application_name="walgate queue")) as connection:
        for table, hindrance in find_hindrances(connection, source.publication).items():
            need = backfilled.find_need(str(table), states.get(str(table)), merged)
            if hindrance is None and need is not None and not need.is_read:
                _, size = estimate_size(connection, table)
                waiting.append(Waiting(table, need.reason, size))
    if not waiting:
        return []
    running = _find_running(settings)
    left = [one for one in waiting if str(one.table) not in running]
    return sorted(left, key=lambda one: (one.size, one.table))


def _find_running(settings: Settings) -> set[str]:
    """The tables that a process of this host reads, whoever began it."""
    folder = ChunkFolder(settings.lake.spool)
    newest = BackfillLedger(settings.lake.root).read_newest()
    return {table for table, report in newest.items() if folder.is_claimed(report.begun.id)}
