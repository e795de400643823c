"""A commit that is streamed before it can be seen: the history that plain watermarks lose.

The writer is held in the wait for a standby that does not exist: its commit is in the log while
every snapshot still shows the old rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from cdc_core.backfill.changed_key_tracker import ChangedKeyTracker, _Kept
from cdc_core.backfill.marks import Watermark
from cdc_core.backfill.results import BackfillProgress
from cdc_core.backfill.visibility import ChangedKeys
from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import run_capture
from cdc_core.settings import Settings, load_settings
from cdc_core.source import marks
from cdc_core.source.connection import open_connection
from cdc_core.source.primary import History
from cdc_core.spooled import Chunk
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.tail import read_marks
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_source
from tests.backfill.unguarded import let_all_pass
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database, PostgresServer

ROWS = 150
T = TableName("public", "t")


class HeldWriter:
    """A transaction whose commit is written, and seen only once the standby is given up."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.thread = threading.Thread(target=self._commit)

    def _commit(self) -> None:
        with closing(psycopg.connect(self.database.dsn)) as connection:
            connection.execute("set synchronous_commit = on")
            connection.execute("update t set v = 'new' where id = 100")
            connection.execute("delete from t where id = 101")
            connection.commit()

    def start(self) -> None:
        """Give back once the commit waits for a standby that does not exist."""
        self.database.server.configure(synchronous_standby_names="nobody")
        self.thread.start()
        waiters = "select 1 from pg_stat_activity where wait_event = 'SyncRep'"
        wait_for(lambda: self.database.query(waiters), deadline_s=30, what="the held commit")

    def let_go(self) -> None:
        """Nothing must have seen the commit yet."""
        assert read_source(self.database, "t")["100"] == ("100", "old"), "it was seen too early"
        self.database.server.configure(synchronous_standby_names="")
        self.thread.join()


@pytest.fixture
def waiting(private_postgres: Callable[..., PostgresServer]) -> Database:
    """Lend a database of a server of its own."""
    server = private_postgres(18)
    database = server.create_database("source")
    database.execute("create table t (id int primary key, v text)")
    database.execute(f"insert into t select i, 'old' from generate_series(1, {ROWS}) i")
    return database


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "without_the_rule"])
def test_a_commit_that_no_snapshot_shows_wins_over_the_chunk(
    waiting: Database,
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_guarded: bool,
) -> None:
    pipeline = make_pipeline(waiting)
    if not is_guarded:
        monkeypatch.setattr(ChangedKeys, "find_current", let_all_pass)
    held = HeldWriter(waiting)

    def hold(_: TableName, progress: BackfillProgress) -> None:
        if progress.chunks == 5:
            held.start()

    done = run_backfills(
        load_settings(pipeline.folder / "walgate.toml", {}),
        [T],
        chunk_rows=1,
        parallel=1,
        stop=threading.Event(),
        on_progress=hold,
    )
    held.let_go()
    assert done[T].stale == (2 if is_guarded else 0)
    is_equal = fold(pipeline.root, "public.t") == read_source(waiting, "t")
    assert is_equal == is_guarded


def admit_without_memory(
    self: ChangedKeyTracker, step: Watermark, chunk: Chunk, *, at_us: int
) -> Any:
    """The rule switched off: a memory that another session began counts as empty."""
    kept = _Kept(str(chunk.relation.table), ChangedKeys(), at_us)
    self._kept.setdefault(step.memory, kept)
    return _ADMIT(self, step, chunk, at_us=at_us)


_ADMIT = ChangedKeyTracker.admit


@pytest.mark.parametrize(
    "is_guarded",
    [True, pytest.param(False, marks=pytest.mark.soak)],
    ids=["guarded", "without_the_rule"],
)
def test_history_15_a_commit_that_the_capture_before_has_seen_wins_as_well(
    waiting: Database,
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_guarded: bool,
) -> None:
    pipeline = make_pipeline(waiting)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    if not is_guarded:
        monkeypatch.setattr(ChangedKeyTracker, "admit", admit_without_memory)
        # The second guard: a chunk that the capture before has not taken is read again.
        monkeypatch.setattr(ChunkFolder, "empty", lambda _: None)
    held = HeldWriter(waiting)
    captures = [Capturing(settings), Capturing(settings)]

    def change_captures(_: TableName, progress: BackfillProgress) -> None:
        if progress.chunks == 5:
            held.start()
            written = pipeline.current_lsn()
            wait_for(lambda: pipeline.staged() >= written, deadline_s=30, what="the held commit")
            captures[0].finish()
            captures[1].start()

    captures[0].start()
    worker = threading.Thread(
        target=lambda: run_backfills(
            settings,
            [T],
            chunk_rows=1,
            parallel=1,
            stop=threading.Event(),
            on_progress=change_captures,
        )
    )
    worker.start()

    def has_begun_again() -> bool:
        return count_begun(pipeline) > 1 if is_guarded else not worker.is_alive()

    wait_for(has_begun_again, deadline_s=60, what="the backfill to begin again, or to end")
    held.let_go()
    worker.join()
    captures[1].finish()
    is_equal = fold(pipeline.root, "public.t") == read_source(waiting, "t")
    assert is_equal == is_guarded


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "without_the_rule"])
def test_a_commit_of_a_transaction_younger_than_the_begin_is_waited_for(
    waiting: Database,
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_guarded: bool,
) -> None:
    """Its commit record precedes the Begin's, its id follows it: no snapshot lists it."""
    pipeline = make_pipeline(waiting)
    held = HeldWriter(waiting)
    looks: list[str] = []
    begun: list[int] = []

    def emit(connection: psycopg.Connection, detail: str, *, on: History | None = None) -> None:
        if '"step": "begin"' not in detail or held.thread.ident is not None:
            _EMIT(connection, detail, on=on)
            return
        with connection.transaction():
            taken = connection.execute("select pg_current_xact_id()::text::int").fetchone()
            begun.extend(taken or ())
            held.start()
            _EMIT(connection, detail)

    def look(connection: psycopg.Connection) -> str:
        looks.append(_LOOK(connection))
        return looks[-1]

    monkeypatch.setattr(marks, "emit_mark", emit)
    monkeypatch.setattr(marks, "read_snapshot", look)
    if not is_guarded:
        # As it was: those below xmax of a snapshot that is taken once the Begin has committed.
        monkeypatch.setattr(marks, "take_xid", lambda _: begun[0] + 1)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    done: list[object] = []
    worker = threading.Thread(
        target=lambda: done.append(
            run_backfills(settings, [T], chunk_rows=50, parallel=1, stop=threading.Event())
        )
    )
    worker.start()
    wait_for(
        lambda: len(looks) > 5 if is_guarded else not worker.is_alive(),
        deadline_s=60,
        what="the worker to wait, or to end",
    )
    assert worker.is_alive() == is_guarded
    held.let_go()
    worker.join()
    assert done
    is_equal = fold(pipeline.root, "public.t") == read_source(waiting, "t")
    assert is_equal == is_guarded


_EMIT, _LOOK = marks.emit_mark, marks.read_snapshot


class Capturing:
    """A capture of this process, on a thread."""

    def __init__(self, settings: Settings) -> None:
        self._stop = threading.Event()
        bound = RunLimit(self._stop)
        # A test that fails before it finishes this must not keep the process from its end.
        self._thread = threading.Thread(target=run_capture, args=(settings, bound), daemon=True)
        self._source = settings.source

    def start(self) -> None:
        """Give back once it has the slot."""
        self._thread.start()
        with closing(open_connection(self._source)) as connection:
            active = "select active from pg_replication_slots where slot_name = %s"
            wait_for(
                lambda: connection.execute(active, (self._source.slot,)).fetchone() == (True,),
                deadline_s=30,
                what="the slot to be taken",
            )

    def finish(self) -> None:
        """Let it drain."""
        self._stop.set()
        self._thread.join()


def count_begun(pipeline: Pipeline) -> int:
    """How many memories the log has seen begun."""
    marks = read_marks(pipeline.lake, Position(1, Lsn(0), 0))
    begun = [json.loads(mark.detail) for mark in marks]
    return len({said["memory"] for said in begun if said.get("step") == "begin"})
