"""Connections that reach a standby, or a primary that was left: nothing that they read counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import psycopg
import pytest

from cdc_core.errors import SourceError, WrongServer
from cdc_core.settings import Settings, SourceSettings, load_settings
from cdc_core.source import connection as connections
from cdc_core.source import server
from cdc_core.source.backfill_marks import BackfillMarkConnection
from cdc_core.source.chunks import ChunkReader
from cdc_core.source.load import LoadWatch
from cdc_core.source.marks import emit_mark
from cdc_core.source.primary import History, open_primary, read_history
from cdc_core.source.server import MarkConnection, Source
from cdc_core.source.snapshots import open_snapshot
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_source
from tests.backfill.test_unseen_commit import Capturing
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import Database, PostgresServer
from tests.standby import make_standby
from tests.walgate_command import run_walgate

T = TableName("public", "t")
ROWS = 400


@dataclass
class Pair:
    """A primary with a table, and a standby that has stopped to follow it."""

    database: Database
    standby: PostgresServer

    @property
    def dsn(self) -> str:
        """Both hosts, the standby first, each for about half of the connections."""
        servers = (self.standby, self.database.server)
        ports = ",".join(str(server.port) for server in servers)
        return (
            f"host=127.0.0.1,127.0.0.1 port={ports} dbname=shop user=postgres"
            " load_balance_hosts=random"
        )


@pytest.fixture(params=[15, 18])
def pair(
    request: pytest.FixtureRequest, private_postgres: Callable[..., PostgresServer]
) -> Iterator[Pair]:
    """Lend a primary whose standby lacks what was changed last."""
    primary = private_postgres(request.param)
    database = primary.create_database("shop")
    database.execute("create table t (id int primary key, v text)")
    database.execute(f"insert into t select i, 'old' from generate_series(1, {ROWS}) i")
    database.execute("create publication walgate for all tables")
    standby = make_standby(
        primary, private_postgres, request.param, primary_conninfo=primary.dsn("shop")
    )
    standby.query("shop", "select pg_wal_replay_pause()")
    database.execute("update t set v = 'new' where id % 2 = 0")
    database.execute("delete from t where id % 5 = 0")
    yield Pair(database, standby)
    standby.stop("immediate")


def read_settings(pipeline: Pipeline, dsn: str) -> Settings:
    return load_settings(pipeline.folder / "walgate.toml", {"WALGATE_SOURCE__DSN": dsn})


@pytest.mark.parametrize("asked_for", ["", " target_session_attrs=any"], ids=["plain", "any"])
def test_a_backfill_reads_the_primary_alone_whatever_the_hosts_lead_to(
    pair: Pair, make_pipeline: Callable[..., Pipeline], asked_for: str
) -> None:
    pair.database.execute("drop publication walgate")
    pipeline = make_pipeline(pair.database)
    capture = Capturing(read_settings(pipeline, pair.database.dsn))
    capture.start()
    settings = read_settings(pipeline, pair.dsn + asked_for)

    def has_read() -> bool:
        # Where a command's own capture reaches the standby, it ends; a person tries again.
        with suppress(SourceError):
            stop = threading.Event()
            return T in run_backfills(settings, [T], chunk_rows=40, parallel=2, stop=stop)
        return False

    wait_for(has_read, DEADLINE_S, "a backfill over both hosts")
    capture.finish()
    source = read_source(pair.database, "t")
    assert len(source) == ROWS * 4 // 5
    assert fold(pipeline.root, str(T)) == source


def test_every_connection_that_reads_refuses_a_standby(pair: Pair) -> None:
    source = SourceSettings(dsn=f"{pair.standby.dsn('shop')} target_session_attrs=any")

    def open_one() -> object:
        return open_primary(source, lambda: None, application_name="walgate test")

    def read_chunk() -> object:
        return ChunkReader(source, T, find_history=lambda: None)

    def verify() -> object:
        opened = open_snapshot(
            source, [T], find_history=lambda: None, patience_s=1.0, stop=threading.Event()
        )
        return opened.__enter__()

    def mark() -> object:
        return MarkConnection(source, History("7", 1))

    for reach in (open_one, read_chunk, verify, mark):
        with pytest.raises(WrongServer, match=r"is a standby, expected the primary"):
            reach()


def test_a_check_names_the_standby_that_it_reached(
    pair: Pair, make_pipeline: Callable[..., Pipeline]
) -> None:
    pair.database.execute("drop publication walgate")
    pipeline = make_pipeline(pair.database)
    standby = {"WALGATE_SOURCE__DSN": f"{pair.standby.dsn('shop')} target_session_attrs=any"}
    answer = run_walgate("check", folder=pipeline.folder, environment=standby)
    assert answer.exit_code == 1, answer
    assert "the server is a standby" in answer.stdout


def test_capture_takes_catalog_and_stream_from_one_server(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = SourceSettings(dsn=pair.database.dsn)
    with closing(Source(primary)) as source:
        assert source.server.timeline == 1
    standby = SourceSettings(dsn=f"{pair.standby.dsn('shop')} target_session_attrs=any")
    monkeypatch.setattr(
        server,
        "open_connection",
        lambda _, **options: connections.open_connection(standby, **options),
    )
    with pytest.raises(WrongServer, match="is a standby or another server"):
        Source(primary)


def test_a_reader_that_another_history_came_to_is_refused_in_its_own_transaction(
    pair: Pair,
) -> None:
    source = SourceSettings(dsn=pair.database.dsn)
    with closing(connections.open_connection(source)) as connection:
        here = read_history(connection)
    assert here.timeline == 1
    known = [here]
    reader = ChunkReader(source, T, find_history=lambda: known[0])
    with closing(reader):
        with reader.lock():
            assert reader.look().history == here
        # Capture has followed a promotion; this connection is to the server that was left.
        known[0] = History(here.system_id, 2)
        with pytest.raises(WrongServer, match="timeline 1, the log was filled from"), reader.lock():
            reader.look()


def test_a_connection_that_is_kept_is_proven_at_each_use(pair: Pair) -> None:
    source = SourceSettings(dsn=pair.database.dsn)
    with closing(open_primary(source, lambda: None, application_name="walgate test")) as one:
        here = read_history(one)
    assert here.timeline is not None
    there = History(here.system_id, here.timeline + 1)
    expected = [here]
    steps = BackfillMarkConnection(source, lambda: expected[-1])
    watch = LoadWatch(source, lambda: expected[-1], most_percent=0.001, most_lag=1)
    pair.database.query("select pg_create_logical_replication_slot('walgate', 'pgoutput')")
    pair.database.query("select pg_logical_emit_message(false, 'x', repeat('x', 1 << 20))")
    with closing(steps), closing(watch):
        assert steps.take_xid()
        reason = watch.find_reason()
        assert reason is not None
        assert "not staged yet" in reason
        # A standby was promoted; this server does not know it.
        expected.append(there)
        for use in (steps.take_xid, steps.read_snapshot, lambda: steps.emit("a step")):
            with pytest.raises(WrongServer):
                use()
        assert watch.find_reason() is None
        expected.append(here)
        assert steps.take_xid()
        assert watch.find_reason() is not None
    assert pair.database.query(
        "select count(*) from pg_logical_slot_peek_binary_changes('walgate', null, null,"
        " 'proto_version', '1', 'publication_names', 'walgate', 'messages', 'true')"
        " where encode(data, 'escape') like '%a step%'"
    ) == [(0,)]


def test_a_mark_enters_only_the_history_that_it_is_for(pair: Pair) -> None:
    with psycopg.connect(pair.database.dsn, autocommit=True) as connection:
        here = read_history(connection)

        def emit(history: History) -> int:
            before = connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
            emit_mark(connection, "{}", on=history)
            after = connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
            assert before is not None
            assert after is not None
            return int(after[0] - before[0])

        assert emit(here) > 0
        with pytest.raises(WrongServer, match="timeline 1, the log was filled from"):
            emit(History(here.system_id, 2))
