"""A chunk stands open: read, and its watermark not written yet. What happens meanwhile is not lost.

The worker is held there, as a paused process would be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from cdc_core.backfill.changed_key_tracker import ChangedKeyTracker
from cdc_core.backfill.results import BackfillProgress
from cdc_core.settings import load_settings
from cdc_core.staging.tail import read_marks
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.backfill.backfill import run_backfills
from orchestration.capture.own_capture import ensuring_capture
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.backfill.test_crashes import start_worker
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.histories.gate import Gate
from tests.postgres_server import Database

T = TableName("public", "t")
ROWS = 40


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Lend the gate of this process's backfills, open."""
    gate = Gate()
    monkeypatch.setattr("cdc_core.backfill.reading.reach", gate.reach)
    yield gate
    gate.open()


@pytest.fixture
def rememberings(monkeypatch: pytest.MonkeyPatch) -> list[ChangedKeyTracker]:
    """Lend what captures of this process remember, with the most bytes of each in `most`."""
    made: list[ChangedKeyTracker] = []
    make = ChangedKeyTracker.__init__

    def keep(self: ChangedKeyTracker) -> None:
        make(self)
        made.append(self)

    monkeypatch.setattr(ChangedKeyTracker, "__init__", keep)
    return made


@pytest.fixture
def table(database18: Database) -> Database:
    """Lend a database with a table, whose rows are older than any slot."""
    database18.execute("create table t (id int primary key, v text)")
    database18.execute(f"insert into t select i, 'old' from generate_series(1, {ROWS}) i")
    return database18


def run_in_background(pipeline: Pipeline) -> threading.Thread:
    """Start a backfill of the table, a row at a time."""
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    thread = threading.Thread(
        target=lambda: run_backfills(
            settings, [T], chunk_rows=1, parallel=1, stop=threading.Event()
        )
    )
    thread.start()
    return thread


def execute_behind(database: Database, statement: str) -> threading.Thread:
    """Start a statement; back once it waits for the lock of the chunk that stands open."""
    thread = threading.Thread(target=lambda: database.execute(statement))
    thread.start()
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query = %s"
    wait_for(lambda: database.query(waiting, [statement]), DEADLINE_S, f"{statement} to wait")
    return thread


def test_whatever_happens_in_an_open_chunk_the_log_has_what_the_source_has(
    table: Database, pipeline: Pipeline, gate: Gate
) -> None:
    worker = run_in_background(pipeline)
    for statement in (
        f"truncate t; insert into t select i, 'new' from generate_series(5, {ROWS}) i",
        "vacuum full t",
        "alter table t add column n int default 7",
    ):
        gate.close()
        waiting = execute_behind(table, statement)
        gate.open()
        waiting.join()
    gate.close()
    # Rows move out of what was read, out of what is being read, and out of what was not.
    table.execute("update t set id = id + 1000 where id % 3 = 0")
    table.execute("update t set id = id - 1000 where id % 9 = 0 and id > 1000")
    gate.open()
    gate.close()
    with closing(psycopg.connect(table.dsn)) as writer:
        writer.execute("update t set v = 'long' where id % 2 = 0")
        writer.execute("delete from t where id % 7 = 0")
        gate.open()
        worker.join()
        writer.commit()
    pipeline.catch_up()
    # Chunks read before the column came have no value for it.
    known = {key: row[:2] for key, row in fold(pipeline.root, str(T)).items()}
    assert known == {key: row[:2] for key, row in read_source(table, "t").items()}
    widths = {len(row["values"]) for row in read_changes(pipeline.root, str(T), "read")}
    assert widths == {2, 3}


@pytest.mark.parametrize(
    ("statement", "times"),
    [
        ("alter table t alter v type text using upper(v)", 2),
        ("vacuum full t", 1),
        ("cluster t using t_pkey", 1),
        ("truncate t; insert into t select i, 'new' from generate_series(5, 40) i", 1),
    ],
    ids=["using", "vacuum_full", "cluster", "truncate"],
)
def test_rows_read_before_a_rewrite_that_may_have_changed_them_are_read_again(
    table: Database, pipeline: Pipeline, statement: str, times: int
) -> None:
    """The log has never seen the table; its next chunk is read after the rewrite."""

    def rewrite(_: TableName, progress: BackfillProgress) -> None:
        if progress.chunks == 1 and not happened:
            happened.append(statement)
            table.execute(statement)

    happened: list[str] = []
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    run_backfills(
        settings, [T], chunk_rows=1, parallel=1, stop=threading.Event(), on_progress=rewrite
    )
    assert happened
    pipeline.catch_up()
    assert fold(pipeline.root, str(T)) == read_source(table, "t")
    marks = [mark.detail for mark in read_marks(pipeline.lake, Position(1, Lsn(0), 0))]
    assert sum('"step": "begin"' in mark for mark in marks) == times
    read = read_changes(pipeline.root, str(T), "read")
    assert len({entry["relation_version"] for entry in read}) == times


def test_history_26_more_than_may_be_remembered_voids_the_chunk_of_a_paused_worker(
    table: Database,
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rememberings: list[ChangedKeyTracker],
) -> None:
    pipeline.make_slot_again()
    bound = 4096
    most: list[int] = []
    tell = ChangedKeyTracker.remember_rows

    def watch(self: ChangedKeyTracker, *told: object) -> None:
        tell(self, *told)  # type: ignore[arg-type] # As it was called.
        most.append(self.size)

    monkeypatch.setattr("cdc_core.backfill.changed_key_tracker.MEMORY_BYTES", bound)
    monkeypatch.setattr(ChangedKeyTracker, "remember_rows", watch)
    held = tmp_path / "held"
    held.touch()
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    with ensuring_capture(settings, threading.Event()):
        worker = start_worker(
            pipeline, tables=[str(T)], WALGATE_HOLD_AT=f"after_chunk_stored={held}"
        )
        spool = pipeline.spool
        wait_for(lambda: list(spool.glob("chunk-*")), DEADLINE_S, "a chunk to stand open")
        # One transaction of more keys than may be remembered, each row of the chunk among them.
        table.execute(
            "begin; update t set v = 'new' where id > 3; delete from t where id = 2;"
            " insert into t select i, 'huge' from generate_series(100, 2000) i; commit"
        )
        pipeline.wait_until_staged(pipeline.current_lsn())
        held.unlink()
        assert worker.wait(DEADLINE_S) == 0, worker.output()
        wait_for(lambda: not rememberings[-1].size, DEADLINE_S, "capture to forget")
    assert max(most) <= bound
    marks = [mark.detail for mark in read_marks(pipeline.lake, Position(1, Lsn(0), 0))]
    assert sum('"state": "void"' in mark for mark in marks) >= 1, "the chunk was let in"
    assert sum('"step": "begin"' in mark for mark in marks) >= 2, "it did not begin again"
    pipeline.catch_up()
    assert fold(pipeline.root, str(T)) == read_source(table, "t")


def test_a_chunk_whose_worker_was_killed_is_remembered_no_more(
    table: Database,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    rememberings: list[ChangedKeyTracker],
) -> None:
    pipeline.make_slot_again()
    # By the times of the stream: a worker is heard of every minute, and given up after ten.
    monkeypatch.setattr("cdc_core.backfill.changed_key_tracker.SILENCE_US", 300_000)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    with ensuring_capture(settings, threading.Event()):
        worker = start_worker(pipeline, tables=[str(T)], WALGATE_CRASH_AT="after_chunk_stored")
        assert worker.wait() == -9, worker.output()
        remembering = rememberings[-1]
        assert not remembering.is_idle
        table.execute("update t set v = 'new'")

        def is_forgotten() -> bool:
            table.execute("update t set v = v where id = 1")
            return remembering.is_idle

        wait_for(is_forgotten, DEADLINE_S, "capture to forget")
        assert remembering.size == 0
