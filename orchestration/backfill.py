"""Backfills from a process of their own: through the capture that runs, or one that they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from cdc_core.backfill.reading import Wanted
from cdc_core.backfill.results import Progress
from cdc_core.backfill.worker import Backfill
from cdc_core.capture.concealing import make_conceal
from cdc_core.capture.loop import Bound
from cdc_core.capture.run import run_capture
from cdc_core.errors import SlotInUse, WalgateError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_briefly
from cdc_core.source.slot import read_slot
from cdc_core.staging.relations import RelationStore
from cdc_core.vocabulary import Relation, TableName


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

    def find_latest(oid: int) -> Relation | None:
        return RelationStore(settings.lake.root / "staging" / "relations").latest(oid)

    done: dict[TableName, Progress] = {}
    with _capturing(settings, stop):
        for table in tables:
            conceal = make_conceal(settings, find_latest)
            run = Backfill(
                settings.lake,
                Wanted(settings.source, table, chunk_rows, conceal),
                parallel=parallel,
                stop=stop,
                on_progress=partial(on_progress, table),
            )
            if not run.run():
                break
            done[table] = run.progress
    return done


@contextmanager
def _capturing(settings: Settings, stop: threading.Event) -> Iterator[None]:
    """Have capture run while a block does: the one that holds the slot, or one of our own.

    Raises: WalgateError, what ended our own.
    """
    source = settings.source
    with closing(open_briefly(source, application_name="walgate look")) as connection:
        slot = read_slot(connection, source.slot)
    if slot is not None and slot.active_pid is not None:
        yield
        return
    finished = threading.Event()
    failures: list[WalgateError] = []

    def capture() -> None:
        try:
            run_capture(settings, Bound(finished))
        except SlotInUse:
            pass  # Another came first, and serves as well.
        except WalgateError as error:
            failures.append(error)
            stop.set()

    thread = threading.Thread(target=capture, name="walgate-capture", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        if failures:
            raise failures[0]
