"""Finds the tables that wait for a whole backfill, from the publication and the ledgers.

Level-triggered: each read computes the queue from the current state, and nothing is taken from it.
A table is in it for as long as it may lack rows, so that no crash loses its turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace

from cdc_core.settings import Settings
from cdc_core.source.backfillable import find_read_obstacles
from cdc_core.source.chunks import estimate_size
from cdc_core.source.connection import open_for_quick_query
from cdc_core.staging.backfills import BackfillLedger
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.tables import staging_errors
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from spark_jobs.lake.completeness import Incomplete, read_completeness
from spark_jobs.lake.lake import Bound, Lake, open_table
from spark_jobs.lake.ledger import find_cut, read_states

_BY_A_PERSON = (BackfillState.PAUSED, BackfillState.CANCELLED)
# The queue is read often: the last answer of the source may be this old.
_SELDOM_S = 60.0
_NAME = "walgate queue"


@dataclass(frozen=True, slots=True)
class QueuedTable:
    """A table that must be read whole, why, and its size at the source in bytes.

    If `is_anew`, its unfinished backfill began too early to count: the next one begins again.
    """

    table: TableName
    reason: str
    size: int
    is_anew: bool = False


class QueueReader:
    """Reads the queue repeatedly: the ledgers each time, the source once a minute.

    It also asks the source when the log has announced a relation, and for sizes when a table waits
    whose size it does not know.
    """

    def __init__(self, settings: Settings) -> None:
        """Nothing was asked yet."""
        self._settings = settings
        self._lake = Lake.of(settings)
        # The source's last answer: the tables that can be read, and the sizes of some of them.
        self._readable: list[TableName] = []
        self._sizes: dict[TableName, int] = {}
        self._asked_at: float | None = None
        self._announced = -1

    def read(self) -> list[QueuedTable]:
        """The tables that wait, smallest first.

        Leaves out a table that a worker reads now. Leaves out a table whose backfill a person has
        paused or cancelled, unless that backfill began too early to count.
        Raises: SourceError, StagingError.
        """
        with staging_errors("read the ledgers"):
            relations = open_table(self._lake.relations)
            announced = -1 if relations is None else relations.version()
        is_old = self._asked_at is None or read_clock() - self._asked_at >= _SELDOM_S
        if is_old or announced != self._announced:
            self._ask(announced)
        if not self._find_needs():
            return []
        # Read unfinished backfills first: one that ends between the two reads leaves `needs`.
        unfinished = _find_unfinished(self._settings)
        needs = self._find_needs()
        if not needs.keys() <= self._sizes.keys():
            self._measure(needs)
        waiting = []
        for table, need in needs.items():
            one = QueuedTable(table, need.reason, self._sizes[table])
            if (found := unfinished.get(table)) is None:
                waiting.append(one)
                continue
            is_anew = need.since is not None and found.start < need.since
            if not found.is_read and (is_anew or not found.is_kept):
                waiting.append(replace(one, is_anew=is_anew))
        return sorted(waiting, key=lambda one: (one.size, one.table))

    def _find_needs(self) -> dict[TableName, Incomplete]:
        """The tables that must be read whole, as the ledgers show now, and why."""
        with staging_errors("read the ledgers"):
            backfilled, states = read_completeness(self._lake), read_states(self._lake)
            cut = find_cut(self._lake)
        merged = None if cut is None else cut.bound
        needs = {
            table: backfilled.find_backfill_need(str(table), states.get(str(table)), merged)
            for table in self._readable
        }
        return {table: need for table, need in needs.items() if need and not need.is_read}

    def _ask(self, announced: int) -> None:
        source = self._settings.source
        with closing(open_for_quick_query(source, application_name=_NAME)) as connection:
            hindrances = find_read_obstacles(connection, source.publication)
        self._readable = [table for table, hindrance in hindrances.items() if hindrance is None]
        self._sizes = {}
        self._asked_at, self._announced = read_clock(), announced

    def _measure(self, tables: Iterable[TableName]) -> None:
        with closing(
            open_for_quick_query(self._settings.source, application_name=_NAME)
        ) as connection:
            self._sizes |= {table: estimate_size(connection, table)[1] for table in tables}


def read_clock() -> float:
    """Seconds of the monotonic clock."""
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A whole backfill that is not done; whether a worker reads it or a person holds it back."""

    start: Bound
    is_read: bool
    is_kept: bool


def _find_unfinished(settings: Settings) -> dict[TableName, _Unfinished]:
    """The newest whole backfill of each table, if it is not done."""
    folder = ChunkFolder(settings.lake.spool)
    reports = BackfillLedger(settings.lake.root).read_all()
    newest = {report.begun.table: report for report in reports if report.begun.scope.is_whole}
    return {
        table: _Unfinished(
            Bound(report.begun.start.epoch, report.begun.start.commit_lsn),
            is_read=folder.is_claimed(report.begun.id),
            is_kept=report.state in _BY_A_PERSON,
        )
        for table, report in newest.items()
        if report.state is not BackfillState.DONE
    }
