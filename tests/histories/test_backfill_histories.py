"""Histories that lose rows to plausible backfills: each ends as the source has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from cdc_core.backfill.results import BackfillProgress
from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database, PostgresServer

T = TableName("public", "t")


class Worker:
    """A backfill of table t on a thread, one row at a time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.at_chunk: dict[int, Callable[[], object]] = {}
        self.done: dict[TableName, BackfillProgress] = {}
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.done = run_backfills(
            load_settings(self.pipeline.folder / "walgate.toml", {}),
            [T],
            chunk_rows=1,
            parallel=1,
            stop=threading.Event(),
            on_progress=self._act,
        )

    def _act(self, _: TableName, progress: BackfillProgress) -> None:
        if progress.chunks in self.at_chunk:
            self.at_chunk[progress.chunks]()

    def finish(self) -> BackfillProgress:
        self.thread.join()
        return self.done[T]


@pytest.fixture
def worker(pipeline: Pipeline, database18: Database) -> Worker:
    """Lend a worker over a table of 40 rows."""
    make_table(database18)
    pipeline.make_slot_again()
    return Worker(pipeline)


def make_table(database: Database) -> None:
    database.execute("create table t (id int primary key, v text, big text)")
    database.execute("alter table t alter big set storage external")
    database.execute("insert into t select i, 'old', null from generate_series(1, 40) i")


def test_history_18_a_writer_that_was_open_when_its_table_was_added_is_waited_for(
    worker: Worker, database18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database18.execute("drop publication walgate; create publication walgate")
    worker.pipeline.make_slot_again()
    with closing(psycopg.connect(database18.dsn)) as writer:
        writer.execute("insert into t values (41, 'open', null)")
        writer.execute("update t set v = 'open' where id = 1")
        database18.execute("alter publication walgate add table t")
        worker.thread.start()
        wait_for(
            lambda: any(record.getMessage() == "backfill waits" for record in caplog.records),
            deadline_s=60,
            what="the backfill to wait for the writer",
        )
        assert not worker.done
        writer.commit()
    assert worker.finish().rows == 41
    assert fold(worker.pipeline.root, "public.t") == read_source(database18, "t")


def test_history_05_a_truncate_between_chunks_leaves_what_came_after_it(
    worker: Worker, database18: Database
) -> None:
    worker.at_chunk[10] = lambda: database18.execute(
        "truncate t; insert into t values (3, 'new', null), (50, 'new', null)"
    )
    worker.thread.start()
    worker.finish()
    worker.pipeline.catch_up()
    assert fold(worker.pipeline.root, "public.t") == read_source(database18, "t")


def test_a_column_added_between_chunks_is_in_the_later_ones(
    worker: Worker, database18: Database
) -> None:
    worker.at_chunk[10] = lambda: database18.execute("alter table t add n int default 7")
    worker.thread.start()
    worker.finish()
    entries = read_changes(worker.pipeline.root, "public.t", "read")
    widths = [len(entry["values"]) for entry in entries]
    assert widths == sorted(widths)
    assert set(widths) == {3, 4}
    assert {entry["values"][3] for entry in entries if len(entry["values"]) > 3} == {"7"}


def test_a_server_that_restarts_in_mid_backfill_is_come_back_to(
    private_postgres: Callable[..., PostgresServer], make_pipeline: Callable[..., Pipeline]
) -> None:
    server = private_postgres(18)
    database = server.create_database("source")
    make_table(database)
    worker = Worker(make_pipeline(database))

    def restart() -> None:
        database.execute("update t set v = 'new' where id > 20")
        server.restart("immediate")

    worker.at_chunk[10] = restart
    worker.thread.start()
    assert worker.finish().rows >= 40
    worker.pipeline.catch_up()
    assert fold(worker.pipeline.root, "public.t") == read_source(database, "t")
