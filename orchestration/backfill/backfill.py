"""Runs backfills in this process, with the running capture or with a capture of their own."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.log_history import find_log_history
from cdc_core.backfill.request import BackfillRequest
from cdc_core.backfill.results import BackfillProgress
from cdc_core.backfill.worker import Backfill
from cdc_core.capture.concealing import make_conceal
from cdc_core.errors import Retry, SourceError, WalgateError
from cdc_core.settings import Settings
from cdc_core.source.chunks import estimate_size
from cdc_core.source.connection import open_for_query
from cdc_core.source.load import LoadWatch
from cdc_core.spooled import WHOLE, Key, Scope
from cdc_core.staging.relations import RelationStore
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Relation, TableName
from orchestration.capture.own_capture import ensuring_capture

# A backfill of a small table mostly waits for capture, so others run at the same time.
_TABLES_AT_ONCE = 4

_logger = logging.getLogger("walgate.backfill")


def run_backfills(
    settings: Settings,
    tables: Iterable[TableName],
    *,
    chunk_rows: int,
    parallel: int,
    stop: threading.Event,
    on_progress: Callable[[TableName, BackfillProgress], None] = lambda _table, _progress: None,
    scope: Scope = WHOLE,
    is_anew: bool = False,
) -> dict[TableName, BackfillProgress]:
    """Bring tables, or the same part of each, into the log, several at a time.

    Returns the tables whose backfills are done: without cancelled ones, and fewer after `stop`.
    `is_anew` reads again what an unfinished backfill has brought. `parallel` is the number of
    connections that read, for all tables together. If a table fails, the others are still read.
    Raises: WalgateError, of capture or of the first table that failed.
    """
    chosen = _order_tables(settings, list(tables), stop=stop)
    done: dict[TableName, BackfillProgress] = {}
    failures: list[WalgateError] = []
    telling = threading.Lock()
    limits = settings.backfill
    watch = LoadWatch(
        settings.source,
        find_log_history(settings.lake.root),
        most_percent=limits.most_slot_percent,
        most_lag=limits.most_lag,
    )
    sharing = BackfillLimits(
        parallel, rows_per_second=limits.rows_per_second, look=watch.find_reason
    )

    def run(table: TableName) -> None:
        def tell(progress: BackfillProgress) -> None:
            with telling:
                on_progress(table, progress)

        wanted = make_request(settings, table, chunk_rows=chunk_rows, scope=scope)
        backfill = Backfill(
            settings.lake, wanted, sharing=sharing, stop=stop, on_progress=tell, is_anew=is_anew
        )
        try:
            state = backfill.run() if not stop.is_set() else BackfillState.STOPPED
        except WalgateError as error:
            fields = {"table": str(table), "reason": error.message}
            _logger.warning("backfill failed", extra={"fields": fields})
            failures.append(error)
        else:
            if state is BackfillState.DONE:
                done[table] = backfill.progress

    with (
        ensuring_capture(settings, stop),
        closing(watch),
        ThreadPoolExecutor(_TABLES_AT_ONCE, "walgate-backfill") as pool,
    ):
        runs = [pool.submit(run, table) for table in chosen]
        for one in runs:
            one.result()
    if failures:
        raise failures[0]
    return {table: done[table] for table in chosen if table in done}


def make_request(
    settings: Settings, table: TableName, *, chunk_rows: int, scope: Scope = WHOLE
) -> BackfillRequest:
    """What a backfill reads of a table, and what the settings conceal of it."""

    def find_latest(oid: int) -> Relation | None:
        return RelationStore(settings.lake.root).latest(oid)

    conceal = make_conceal(settings, find_latest)
    find_history = find_log_history(settings.lake.root)
    return BackfillRequest(settings.source, find_history, table, chunk_rows, conceal, scope)


def _order_tables(
    settings: Settings, tables: list[TableName], *, stop: threading.Event
) -> list[TableName]:
    """Put tables into the order of the settings. Raises: SourceError.

    A table whose size cannot be read now comes last, for example if a session has locked it.
    """
    if settings.backfill.order == "given" or len(tables) == 1:
        return tables
    sizes: dict[TableName, int] = {}
    with closing(open_for_query(settings.source, application_name="walgate look")) as connection:
        for table in tables:
            if stop.is_set():
                break
            try:
                sizes[table] = estimate_size(connection, table)[1]
            except SourceError as error:
                if error.retry is Retry.AFTER_FIX:
                    raise
                fields = {"table": str(table), "reason": error.message}
                _logger.warning("size of a table is unknown", extra={"fields": fields})
    return sorted(tables, key=lambda table: sizes.get(table, math.inf))


def reread_keys(
    settings: Settings, table: TableName, keys: Sequence[Key], *, stop: threading.Event
) -> bool:
    """Bring into the log what some keys of a table have now: their rows, or that they have none.

    A key is the texts of its columns, in key order. Returns False if it was not done: it was asked
    to stop, the epoch ended, or the table was rewritten. Raises: WalgateError.
    """
    with ensuring_capture(settings, stop):
        wanted = make_request(settings, table, chunk_rows=settings.backfill.chunk_rows)
        return Backfill(settings.lake, wanted, sharing=BackfillLimits(1), stop=stop).reread(keys)
