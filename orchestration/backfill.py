"""Backfills from a process of their own: through the capture that runs, or one that they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from cdc_core.backfill.reading import Wanted
from cdc_core.backfill.results import Progress
from cdc_core.backfill.worker import Backfill
from cdc_core.capture.concealing import make_conceal
from cdc_core.settings import Settings
from cdc_core.spooled import Key
from cdc_core.staging.relations import RelationStore
from cdc_core.vocabulary import Relation, TableName
from orchestration.own_capture import capturing


def run_backfills(
    settings: Settings,
    tables: Iterable[TableName],
    *,
    chunk_rows: int,
    parallel: int,
    stop: threading.Event,
    on_progress: Callable[[TableName, Progress], None] = lambda _table, _progress: None,
) -> dict[TableName, Progress]:
    """Bring whole tables into the log, one after the other; fewer than asked for once stopped.

    Raises: WalgateError.
    """
    done: dict[TableName, Progress] = {}
    with capturing(settings, stop):
        for table in tables:
            run = Backfill(
                settings.lake,
                _want(settings, table, chunk_rows=chunk_rows),
                parallel=parallel,
                stop=stop,
                on_progress=partial(on_progress, table),
            )
            if not run.run():
                break
            done[table] = run.progress
    return done


def reread_keys(
    settings: Settings, table: TableName, keys: Sequence[Key], *, stop: threading.Event
) -> bool:
    """Bring into the log what some keys of a table have now: their rows, or that they have none.

    A key is the texts of its columns, in key order. Give whether it was done before it was told to
    stop. Raises: WalgateError.
    """
    with capturing(settings, stop):
        wanted = _want(settings, table, chunk_rows=settings.backfill.chunk_rows)
        return Backfill(settings.lake, wanted, parallel=1, stop=stop).reread(keys)


def _want(settings: Settings, table: TableName, *, chunk_rows: int) -> Wanted:
    def find_latest(oid: int) -> Relation | None:
        return RelationStore(settings.lake.root / "staging" / "relations").latest(oid)

    return Wanted(settings.source, table, chunk_rows, make_conceal(settings, find_latest))
