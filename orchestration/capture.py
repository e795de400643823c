"""Capture, and the whole reads that a change of its settings makes necessary.

A user may set other publications or another origin, and later set them back. The server never sends
the changes that the settings left out. So capture queues a whole read of each table that it was not
sent before. It does so before its first commit under the new settings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from cdc_core.capture.loop import Bound as Until
from cdc_core.capture.run import run_capture
from cdc_core.coordination.live import Figures
from cdc_core.settings import Settings
from cdc_core.source.connection import open_connection
from cdc_core.source.creation import list_keyed_tables
from cdc_core.source.identity import list_published_tables
from cdc_core.source.publication_problems import read_publications
from cdc_core.staging.subscriptions import SubscriptionChange
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake import Bound, Lake
from spark_jobs.ledger import queue_tables

# From this version on the server passes over changes that are older than their publication.
_SKIPS_YOUNGER_SINCE = 18


def capture(
    settings: Settings, until: Until, *, watch: Callable[[Figures], None] | None = None
) -> None:
    """Replicate until a bound is met; `watch` is called with every look at the figures.

    Raises: WalgateError.
    """
    run_capture(settings, until, watch=watch, note_change=partial(queue_unsent, settings))


def queue_unsent(settings: Settings, change: SubscriptionChange, epoch: int, staged: Lsn) -> None:
    """Ask for a whole backfill of each table of which changes up to `staged` were not sent.

    Raises: SourceError, StagingError.
    """
    tables = _list_unsent(settings, change)
    reason = f"{change.explain()}: what changed in the table before {staged} may be missing"
    with staging_errors("queue what was not sent before"):
        queue_tables(Lake.of(settings), tables, reason=reason, since=Bound(epoch, staged))


def _list_unsent(settings: Settings, change: SubscriptionChange) -> list[TableName]:
    """The tables that are sent now, and were not sent without a gap, or not from every origin.

    A publication that is gone counts as one without tables. One that was named only now, and may be
    younger than what the slot has yet to read, leaves a gap; older servers end the stream instead.
    """
    before, now = change.before, change.now
    with closing(open_connection(settings.source, application_name="walgate catalog")) as source:
        published = list_published_tables(source, now.publication)
        keyed = set(list_keyed_tables(source))
        major = source.info.server_version // 10_000
        young = {
            one.name
            for one in read_publications(source, settings.source, major=major)
            if one.may_be_younger
            and one.name not in before.publication
            and major >= _SKIPS_YOUNGER_SINCE
        }
        old = tuple(name for name in now.publication if name not in young)
        without_gap = set(list_published_tables(source, before.publication)).intersection(
            list_published_tables(source, old)
        )
    is_wider = before.origin != now.origin and now.origin == "any"
    return [
        table for table in published if table in keyed and (is_wider or table not in without_gap)
    ]
