"""Runs capture, and queues whole backfills after a change of publications or origin.

A user may set other publications or another origin, and later set them back. The server never sends
the changes that the settings left out. So capture queues a whole backfill of each table whose
changes may be missing. It does so before its first commit under the new settings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import run_capture
from cdc_core.coordination.live import Figures
from cdc_core.errors import MergeError, Retry, StagingError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_for_query
from cdc_core.source.identity import list_published_tables
from cdc_core.staging.subscriptions import SubscriptionChange
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import queue_tables


def capture(
    settings: Settings, until: RunLimit, *, watch: Callable[[Figures], None] | None = None
) -> None:
    """Replicate until `until` is met; `watch` is called with every reading of the figures.

    Raises: WalgateError.
    """
    run_capture(settings, until, watch=watch, note_change=partial(queue_unsent, settings))


def queue_unsent(settings: Settings, change: SubscriptionChange, epoch: int, staged: Lsn) -> None:
    """Queue a whole backfill of each table whose changes up to `staged` may be missing.

    Raises: SourceError, StagingError.
    """
    tables = _list_unsent(settings, change)
    reason = f"{change.explain()}: changes of the table before {staged} may be missing"
    with staging_errors("queue the tables whose changes were not sent"):
        try:
            queue_tables(Lake.of(settings), tables, reason=reason, since=Bound(epoch, staged))
        except MergeError as error:
            # As for the log: the disk may accept later what it refuses now.
            raise StagingError(error.message, fix=error.fix, retry=Retry.LATER) from error


def _list_unsent(settings: Settings, change: SubscriptionChange) -> list[TableName]:
    """The tables whose changes, or whose changes of some origins, may be missing.

    If the origin became `any`, these are all tables. If not, these are the tables of publications
    that the settings did not name before. The catalog shows what a publication holds now. It does
    not show what the publication held when the changes were sent.
    """
    before, now = change.before, change.now
    added = tuple(name for name in now.publication if name not in before.publication)
    is_wider = before.origin != now.origin and now.origin == "any"
    with closing(open_for_query(settings.source, application_name="walgate catalog")) as source:
        return list_published_tables(source, now.publication if is_wider else added)
