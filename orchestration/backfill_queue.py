"""The tables that wait for a whole backfill, as the publication and the ledgers tell it.

Level-triggered: nothing is taken from the queue. A table is in it for as long as it may lack rows,
so that no crash loses its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from cdc_core.settings import Settings
from cdc_core.source.backfillable import find_hindrances
from cdc_core.source.chunks import estimate_size
from cdc_core.source.connection import open_briefly
from cdc_core.staging.backfills import BackfillLedger, BackfillState
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import TableName
from spark_jobs.backfilled import Lack, read_backfilled
from spark_jobs.lake import Bound, Lake
from spark_jobs.ledger import find_cut, read_states

_BY_A_PERSON = (BackfillState.PAUSED, BackfillState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table that must be read whole, why, and the bytes it has at the source.

    `is_anew` where an unfinished backfill of it began too early to be gone on with.
    """

    table: TableName
    reason: str
    size: int
    is_anew: bool = False


def read_queue(settings: Settings) -> list[Waiting]:
    """The tables that wait, smallest first; none that is being read now, or that a person keeps.

    Raises: SourceError, StagingError.
    """
    lake, source = Lake.of(settings), settings.source
    with staging_errors("read the ledgers"):
        backfilled, states, cut = read_backfilled(lake), read_states(lake), find_cut(lake)
    merged = None if cut is None else cut.bound
    needs: list[tuple[Waiting, Lack]] = []
    with closing(open_briefly(source, application_name="walgate queue")) as connection:
        for table, hindrance in find_hindrances(connection, source.publication).items():
            need = backfilled.find_need(str(table), states.get(str(table)), merged)
            if hindrance is None and need is not None and not need.is_read:
                _, size = estimate_size(connection, table)
                needs.append((Waiting(table, need.reason, size), need))
    waiting = list(_look_at_unfinished(settings, needs)) if needs else []
    return sorted(waiting, key=lambda one: (one.size, one.table))


def _look_at_unfinished(
    settings: Settings, needs: Sequence[tuple[Waiting, Lack]]
) -> Iterator[Waiting]:
    """Leave out what is being read, whoever began it, and what a person paused or cancelled."""
    folder = ChunkFolder(settings.lake.spool)
    reports = BackfillLedger(settings.lake.root).read_all()
    newest = {report.begun.table: report for report in reports if report.begun.scope.is_whole}
    for waiting, need in needs:
        report = newest.get(waiting.table)
        if report is None or report.state is BackfillState.DONE:
            yield waiting
            continue
        start = Bound(report.begun.start.epoch, report.begun.start.commit_lsn)
        is_anew = need.since is not None and start < need.since
        is_kept = report.state in _BY_A_PERSON and not is_anew
        if not is_kept and not folder.is_claimed(report.begun.id):
            yield replace(waiting, is_anew=is_anew)
