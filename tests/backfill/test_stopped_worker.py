"""A worker that is stopped in the middle of a read, or whose path to the source goes silent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import SourceSettings, load_settings
from cdc_core.source import chunks, reading_connection
from cdc_core.source.chunks import ChunkReader
from cdc_core.spooled import Scope
from cdc_core.staging.tail import read_marks
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.fix_proxy import WireProxy
from tests.histories.gate import Gate
from tests.postgres_server import Database

T = TableName("public", "t")
READERS = "from pg_stat_activity where application_name = 'walgate backfill'"


@pytest.mark.parametrize("ended_by", ["its_own_limit", "an_administrator"])
def test_a_stopped_worker_loses_its_lock_and_reads_the_chunk_again(
    database18: Database,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    ended_by: str,
) -> None:
    """The rewrite that waited for the lock changes rows without a change in the stream.

    A session that has lost its lock writes no watermark: the log has that of the second read alone.
    """
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("insert into t select i, 'old' from generate_series(1, 40) i")
    gate = Gate()
    monkeypatch.setattr("cdc_core.backfill.reading.reach", gate.reach)
    if ended_by == "its_own_limit":
        monkeypatch.setattr(reading_connection, "_IDLE_S", 1.0)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    worker = threading.Thread(
        target=lambda: run_backfills(
            settings,
            [T],
            chunk_rows=1000,
            parallel=1,
            stop=threading.Event(),
            scope=Scope(where="id > 0"),
        )
    )
    closing = threading.Thread(target=gate.close)
    closing.start()
    worker.start()
    closing.join()
    if ended_by == "an_administrator":
        database18.execute(f"select pg_terminate_backend(pid) {READERS}")
    wait_for(
        lambda: not database18.query(f"select 1 {READERS}"), DEADLINE_S, "the session to be ended"
    )
    database18.execute("alter table t alter v type text using upper(v)")
    gate.open()
    worker.join()
    assert fold(pipeline.root, str(T)) == read_source(database18, "t")
    marks = [json.loads(mark.detail) for mark in read_marks(pipeline.lake, Position(1, Lsn(0), 0))]
    assert [mark["chunk"] for mark in marks if mark.get("step") == "watermark"] == [0]


def test_only_the_last_watermark_says_that_the_worker_waits(
    database18: Database, pipeline: Pipeline
) -> None:
    database18.execute("create table t (id int primary key)")
    database18.execute("insert into t select generate_series(1, 2500)")
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    run_backfills(settings, [T], chunk_rows=1000, parallel=1, stop=threading.Event())
    marks = [json.loads(mark.detail) for mark in read_marks(pipeline.lake, Position(1, Lsn(0), 0))]
    said = [mark["has_more"] for mark in marks if mark.get("step") == "watermark"]
    assert said == [*[1] * (len(said) - 1), 0]
    assert len(said) > 1


@pytest.fixture
def silent_source(
    database18: Database,
    make_proxy: Callable[..., WireProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[SourceSettings, WireProxy]:
    """Lend a source behind a proxy, with a table of some megabytes."""
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("alter table t alter v set storage external")
    database18.execute("insert into t select i, repeat('x', 20000) from generate_series(1, 2000) i")
    database18.execute("create publication walgate for all tables")
    monkeypatch.setattr(reading_connection, "_STATEMENT_S", 1.0)
    proxy = make_proxy(database18.server.port)
    dsn = database18.server.tcp_dsn(database18.name, port=proxy.port)
    return SourceSettings(dsn=dsn, silence_timeout=1.0), proxy


@pytest.mark.parametrize("is_in_mid_row", [True, False], ids=["between_rows", "before_the_first"])
def test_a_read_over_a_path_that_went_silent_ends(
    silent_source: tuple[SourceSettings, WireProxy],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_in_mid_row: bool,
) -> None:
    source, proxy = silent_source
    reader = ChunkReader(source, T, find_history=lambda: None)
    parse = chunks._parse_rows

    def strand(data: memoryview, width: int, table: TableName) -> pa.ListArray:
        proxy.strand()
        return parse(data, width, table)

    def read() -> None:
        with reader.lock():
            opened = reader.look()
            if is_in_mid_row:
                monkeypatch.setattr(chunks, "_parse_rows", strand)
            else:
                proxy.strand()
            opened.read_rows(["id", "v"], low=None, high=None)

    with pytest.raises(SourceError, match="no answer for 2 s") as ended:
        read()
    assert ended.value.retry is Retry.LATER
    reader.close()
