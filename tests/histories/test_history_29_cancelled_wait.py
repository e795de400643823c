"""H29: a watermark waits for a standby, its wait is cancelled, and it is committed after all.

The worker takes it for lost and reads the chunk again. Capture then finds two watermarks of one
chunk, and at each must let in what was read before it.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable

import pytest

from cdc_core.settings import load_settings
from cdc_core.source import connection
from cdc_core.staging.tail import read_marks
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.histories.gate import Gate
from tests.postgres_server import PostgresServer

T = TableName("public", "t")
ROWS = 5
WAITING = """
    select pid from pg_stat_activity
    where wait_event = 'SyncRep' and application_name = 'walgate steps'
"""


def test_history_29_each_read_enters_at_its_own_watermark(
    private_postgres: Callable[..., PostgresServer],
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = private_postgres(18)
    database = server.create_database("shop")
    database.execute("create table t (id int primary key, v text)")
    database.execute(f"insert into t select i, 'old' from generate_series(1, {ROWS}) i")
    pipeline = make_pipeline(database)
    # Ours never wait for a standby; a role or a server may be set up so that they do.
    monkeypatch.setitem(connection.OUTPUT_SETTINGS, "synchronous_commit", "on")
    capture = pipeline.start_streaming()
    spool = pipeline.spool

    gate = Gate()
    monkeypatch.setattr("cdc_core.backfill.reading.reach", gate.reach)
    worker = threading.Thread(
        target=lambda: run_backfills(
            load_settings(pipeline.folder / "walgate.toml", {}),
            [T],
            chunk_rows=1,
            parallel=1,
            stop=threading.Event(),
        )
    )
    worker.start()
    gate.close()
    capture.send(signal.SIGSTOP)
    server.configure(synchronous_standby_names="nobody")
    gate.open()
    ((pid,),) = wait_for(lambda: database.query(WAITING), DEADLINE_S, "a watermark to wait")
    assert list(spool.glob("chunk-*-1.arrow"))
    database.execute("set synchronous_commit = local; update t set v = 'new'")
    database.query("select pg_terminate_backend(%s)", [pid])
    server.configure(synchronous_standby_names="")
    wait_for(lambda: list(spool.glob("chunk-*-2.arrow")), DEADLINE_S, "the chunk's second read")
    capture.send(signal.SIGCONT)
    worker.join()
    pipeline.finish(capture)
    pipeline.catch_up()
    assert fold(pipeline.root, str(T)) == read_source(database, "t")
    # Both watermarks came, and none brought in what was read after it.
    attempts = read_attempts(pipeline)
    assert any({(chunk, 1), (chunk, 2)} <= attempts for chunk in range(ROWS))
    seen: set[str] = set()
    for entry in read_changes(pipeline.root, str(T), "update", "read"):
        key, value = entry["values"]
        assert entry["op"] == "update" or value == "old" or key in seen, f"{key} came too early"
        seen |= {key} if entry["op"] == "update" else set()
    assert len(seen) == ROWS


def read_attempts(pipeline: Pipeline) -> set[tuple[int, int]]:
    """The attempts at each chunk whose watermarks the log has."""
    marks = (json.loads(mark.detail) for mark in read_marks(pipeline.lake, Position(1, Lsn(0), 0)))
    return {(m["chunk"], m["attempt"]) for m in marks if m.get("step") == "watermark"}
