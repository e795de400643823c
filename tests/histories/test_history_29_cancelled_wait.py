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
from deltalake import DeltaTable

from cdc_core.backfill.results import Progress
from cdc_core.settings import load_settings
from cdc_core.source import connection
from cdc_core.vocabulary import TableName
from orchestration.backfill import run_backfills
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import PostgresServer

T = TableName("public", "t")
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
    database.execute("insert into t select i, 'old' from generate_series(1, 8) i")
    pipeline = make_pipeline(database)
    # Ours never wait for a standby; a role or a server may be set up so that they do.
    monkeypatch.setitem(connection.OUTPUT_SETTINGS, "synchronous_commit", "on")
    capture = pipeline.start_streaming()
    spool = pipeline.root / "spool"

    def hold(_: TableName, progress: Progress) -> None:
        if progress.chunks == 3:
            capture.send(signal.SIGSTOP)
            server.configure(synchronous_standby_names="nobody")

    worker = threading.Thread(
        target=lambda: run_backfills(
            load_settings(pipeline.folder / "walgate.toml", {}),
            [T],
            chunk_rows=1,
            parallel=1,
            stop=threading.Event(),
            on_progress=hold,
        )
    )
    worker.start()
    ((pid,),) = wait_for(lambda: database.query(WAITING), DEADLINE_S, "a watermark to wait")
    (first,) = [path for path in spool.glob("chunk-*.parquet") if path.stem.endswith("-1")][-1:]
    database.execute("set synchronous_commit = local; update t set v = 'new'")
    database.query("select pg_terminate_backend(%s)", [pid])
    server.configure(synchronous_standby_names="")
    wait_for(lambda: list(spool.glob("chunk-*-2.parquet")), DEADLINE_S, "the chunk's second read")
    assert first.exists()
    capture.send(signal.SIGCONT)
    worker.join()
    pipeline.finish(capture)
    pipeline.catch_up()
    assert fold(pipeline.root, str(T)) == read_source(database, "t")
    twice = [number for number, attempts in read_attempts(pipeline).items() if len(attempts) > 1]
    assert len(twice) == 1
    key = str(twice[0] + 1)
    reads = [row["values"] for row in read_changes(pipeline.root, str(T), "read")]
    assert [values[1] for values in reads if values[0] == key] == ["old", "new"]


def read_attempts(pipeline: Pipeline) -> dict[int, list[int]]:
    """The attempts at each chunk that the log let in."""
    log = DeltaTable(pipeline.root / "staging" / "changes")
    marks = log.to_pyarrow_table(columns=["detail"], filters=[("op", "=", "mark")])
    found: dict[int, list[int]] = {}
    for detail in marks.column("detail").to_pylist():
        said = json.loads(detail)
        if said.get("state") == "staged" and said["step"] == "watermark":
            found.setdefault(said["chunk"], []).append(said["attempt"])
    return found
