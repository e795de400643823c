"""The tables that wait for a whole backfill, as the publication and the ledgers tell it.

Level-triggered: nothing is taken from the queue. A table is in it for as long as it may lack rows,
so that no crash loses its turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
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
from spark_jobs.lake import Bound, Lake, open_table
from spark_jobs.ledger import find_cut, read_states

_BY_A_PERSON = (BackfillState.PAUSED, BackfillState.CANCELLED)
# For who asks all the time: how old what the source said may be.
_SELDOM_S = 60.0
_NAME = "walgate queue"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table that must be read whole, why, and the bytes it has at the source.

    `is_anew` where an unfinished backfill of it began too early to be gone on with.
    """

    table: TableName
    reason: str
    size: int
    is_anew: bool = False


class QueueReader:
    """Reads the queue again and again; the ledgers each time, the source once a minute.

    It is asked at once when the log has announced a table, or one waits that it was not asked of.
    """

    def __init__(self, settings: Settings) -> None:
        """Nothing was asked yet."""
        self._settings = settings
        self._lake = Lake.of(settings)
        # What the source said last: the tables that can be read, and how large some of them are.
        self._readable: list[TableName] = []
        self._sizes: dict[TableName, int] = {}
        self._asked_at: float | None = None
        self._announced = -1

    def read(self) -> list[Waiting]:
        """The tables that wait, smallest first; none that is being read, or that a person keeps.

        Raises: SourceError, StagingError.
        """
        with staging_errors("read the ledgers"):
            relations = open_table(self._lake.root / "staging" / "relations")
            announced = -1 if relations is None else relations.version()
            backfilled, states = read_backfilled(self._lake), read_states(self._lake)
            cut = find_cut(self._lake)
        is_old = self._asked_at is None or read_clock() - self._asked_at >= _SELDOM_S
        if is_old or announced != self._announced:
            self._ask(announced)
        merged = None if cut is None else cut.bound
        needs: dict[TableName, Lack] = {}
        for table in self._readable:
            need = backfilled.find_need(str(table), states.get(str(table)), merged)
            if need is not None and not need.is_read:
                needs[table] = need
        if not needs.keys() <= self._sizes.keys():
            self._measure(needs)
        all_waiting = [
            (Waiting(table, need.reason, self._sizes[table]), need) for table, need in needs.items()
        ]
        waiting = _look_at_unfinished(self._settings, all_waiting) if needs else ()
        return sorted(waiting, key=lambda one: (one.size, one.table))

    def _ask(self, announced: int) -> None:
        source = self._settings.source
        with closing(open_briefly(source, application_name=_NAME)) as connection:
            hindrances = find_hindrances(connection, source.publication)
        self._readable = [table for table, hindrance in hindrances.items() if hindrance is None]
        self._sizes = {}
        self._asked_at, self._announced = read_clock(), announced

    def _measure(self, tables: Iterable[TableName]) -> None:
        with closing(open_briefly(self._settings.source, application_name=_NAME)) as connection:
            self._sizes |= {table: estimate_size(connection, table)[1] for table in tables}


def read_clock() -> float:
    """Seconds that only grow."""
    return time.monotonic()


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
