"""Chunks whose memory is of no more use: capture forgot it, or the worker missed an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from cdc_core.backfill import reading, session
from cdc_core.backfill.changed_key_tracker import ChangedKeyTracker
from cdc_core.backfill.marks import BeginBackfill, KeepChangedKeys
from cdc_core.settings import Settings, load_settings
from cdc_core.source.chunks import ChunkReader
from cdc_core.staging.commits import CommitsGone
from cdc_core.staging.tail import Staged, Tail
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_source
from tests.backfill.test_unseen_commit import Capturing
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.histories.gate import Gate
from tests.postgres_server import Database

T = TableName("public", "t")


def start_backfill(
    settings: Settings, stop: threading.Event, done: list[TableName]
) -> threading.Thread:
    """Start a backfill in a thread. At its end, `done` has the table."""

    def work() -> None:
        done.extend(run_backfills(settings, [T], chunk_rows=100, parallel=1, stop=stop))

    worker = threading.Thread(target=work)
    worker.start()
    return worker


def begin_again(memories: ChangedKeyTracker, step: KeepChangedKeys, *, at_us: int) -> bool:
    """What a sign of life once did: it made the memory of which nothing is known."""
    memories.begin(BeginBackfill(step.backfill, step.memory, str(T)), at_us=at_us)
    return True


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "without_the_rule"])
def test_a_chunk_that_outlives_a_session_of_capture_is_read_again(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_guarded: bool,
) -> None:
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("insert into t select i, 'old' from generate_series(1, 10) i")
    pipeline = make_pipeline(database18)
    if not is_guarded:
        monkeypatch.setattr(ChangedKeyTracker, "renew", begin_again)
    # What was in the spool before a capture begins is void in any case.
    gate = Gate("after_chunk_read")
    monkeypatch.setattr(reading, "reach", gate.reach)
    monkeypatch.setattr(session, "_SIGN_OF_LIFE_S", 0.2)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    captures = [Capturing(settings), Capturing(settings)]
    captures[0].start()
    closing_gate = threading.Thread(target=gate.close)
    closing_gate.start()
    worker = threading.Thread(
        target=lambda: run_backfills(
            settings, [T], chunk_rows=100, parallel=1, stop=threading.Event()
        )
    )
    worker.start()
    closing_gate.join()

    database18.execute("update t set v = 'new' where id = 5")
    changed_at = pipeline.current_lsn()
    wait_for(lambda: pipeline.staged() >= changed_at, DEADLINE_S, "the change in the log")
    captures[0].finish()
    captures[1].start()
    # A sign of life that the second capture takes.
    lived_at = pipeline.current_lsn()
    wait_for(
        lambda: pipeline.current_lsn() > lived_at and pipeline.staged() > lived_at,
        DEADLINE_S,
        "a sign of life in the log",
    )
    gate.open()
    worker.join()
    captures[1].finish()
    is_equal = fold(pipeline.root, "public.t") == read_source(database18, "t")
    assert is_equal == is_guarded


def test_a_chunk_whose_watermark_never_comes_is_read_again(
    database18: Database, make_pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary fails whose last WAL no standby has; the standby goes on in the same epoch."""
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("insert into t select i, 'old' from generate_series(1, 10) i")
    pipeline = make_pipeline(database18)
    lost = threading.Event()

    def lose_first(reader: ChunkReader, message: str) -> None:
        if lost.is_set():
            _EMIT(reader, message)
        lost.set()

    monkeypatch.setattr(ChunkReader, "emit", lose_first)
    monkeypatch.setattr(session, "_SIGN_OF_LIFE_S", 0.2)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    captures = [Capturing(settings), Capturing(settings)]
    captures[0].start()
    stop = threading.Event()
    done: list[TableName] = []
    worker = start_backfill(settings, stop, done)
    try:
        assert lost.wait(DEADLINE_S)
        # What comes after a promotion is a new session of capture, which knows no memory.
        captures[0].finish()
        captures[1].start()
        wait_for(lambda: not worker.is_alive(), DEADLINE_S, "the backfill to end")
    finally:
        stop.set()
        worker.join()
        captures[1].finish()
    assert done == [T]
    assert fold(pipeline.root, "public.t") == read_source(database18, "t")


@pytest.mark.parametrize("nth", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
def test_a_worker_that_missed_answers_of_capture_asks_again(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
) -> None:
    """The commits with the answers were removed from the log before the worker read them."""
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("insert into t select i, 'old' from generate_series(1, 10) i")
    pipeline = make_pipeline(database18)
    answers = 0

    def lose_nth(tail: Tail) -> Iterator[Staged]:
        nonlocal answers
        found = list(_READ(tail))
        answers += bool(found)
        if found and answers == nth:
            raise CommitsGone("a commit")
        yield from found

    monkeypatch.setattr(Tail, "read", lose_nth)
    monkeypatch.setattr(session, "_SIGN_OF_LIFE_S", 3600.0)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    capture, stop = Capturing(settings), threading.Event()
    capture.start()
    done: list[TableName] = []
    worker = start_backfill(settings, stop, done)
    try:
        wait_for(lambda: not worker.is_alive(), DEADLINE_S, "the backfill to end")
    finally:
        stop.set()
        worker.join()
        capture.finish()
    assert (done, answers > nth) == ([T], True)
    assert fold(pipeline.root, "public.t") == read_source(database18, "t")


_EMIT = ChunkReader.emit
_READ = Tail.read
