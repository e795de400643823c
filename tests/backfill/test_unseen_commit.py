"""A commit that is streamed before it can be seen: the history that plain watermarks lose.

The writer is held in the wait for a standby that does not exist: its commit is in the log while
every snapshot still shows the old rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from cdc_core.backfill.results import Progress
from cdc_core.backfill.visibility import Memory, Snapshot
from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill import run_backfills
from tests.backfill.folded_log import fold, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database, PostgresServer

ROWS = 150
T = TableName("public", "t")


def let_all_pass(self: Memory, _: Snapshot, keys: pa.StringArray) -> Any:
    """The rule switched off."""
    del self
    return np.ones(len(keys), np.bool_)


class HeldWriter:
    """A transaction whose commit is written, and seen only once the standby is given up."""

    def __init__(self, database: Database, *statements: str) -> None:
        self.database = database
        self.statements = statements
        self.thread = threading.Thread(target=self._commit)

    def _commit(self) -> None:
        with closing(psycopg.connect(self.database.dsn)) as connection:
            connection.execute("set synchronous_commit = on")
            for statement in self.statements:
                connection.execute(statement.encode())
            connection.commit()

    def start(self) -> None:
        """Give back once the commit waits for the standby."""
        self.thread.start()
        waiters = "select 1 from pg_stat_activity where wait_event = 'SyncRep'"
        wait_for(lambda: self.database.query(waiters), deadline_s=30, what="the held commit")

    def let_go(self) -> None:
        self.database.server.configure(synchronous_standby_names="")
        self.thread.join()


@pytest.fixture
def waiting(private_postgres: Callable[..., PostgresServer]) -> Database:
    """Lend a database of a server whose standby is missing."""
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
        monkeypatch.setattr(Memory, "find_current", let_all_pass)
    held = HeldWriter(
        waiting, "update t set v = 'new' where id = 100", "delete from t where id = 101"
    )

    def hold(_: TableName, progress: Progress) -> None:
        if progress.chunks == 5:
            waiting.server.configure(synchronous_standby_names="nobody")
            held.start()

    done = run_backfills(
        load_settings(pipeline.folder / "walgate.toml", {}),
        [T],
        chunk_rows=1,
        parallel=1,
        stop=threading.Event(),
        on_progress=hold,
    )
    assert read_source(waiting, "t")["100"] == ("100", "old"), "the commit was seen too early"
    held.let_go()
    assert done[T].stale == (2 if is_guarded else 0)
    is_equal = fold(pipeline.root, "public.t") == read_source(waiting, "t")
    assert is_equal == is_guarded
