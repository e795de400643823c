"""The lent servers are real, replicate, and die with the run; the proxy sees the wire."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import psycopg
import pyarrow as pa
import pytest
import redis
from pyspark.sql import SparkSession

from tests.child_process import ChildProcess
from tests.deadline import DeadlineMissedError, wait_for
from tests.fix_proxy import WireProxy
from tests.fix_redis import RedisServer
from tests.postgres_server import Database, PostgresServer
from tests.requirement import report_missing
from tests.wire import Direction, FrameReader, StatusUpdate

DEADLINE_S = 30.0


def parse_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def test_a_database_replicates_to_pg_recvlogical(database: Database, tmp_path: Path) -> None:
    server = database.server
    database.execute("create table t (id bigint primary key, name text)")
    database.execute(
        "select pg_create_logical_replication_slot(%s, 'test_decoding')", [f"probe_{database.name}"]
    )
    database.execute("insert into t values (1, 'one'), (2, 'two')")
    (end,) = database.query("select pg_current_wal_lsn()::text")[0]
    tmp_path.chmod(0o755)
    received = server.run(
        "pg_recvlogical",
        *("--dbname", database.dsn, "--slot", f"probe_{database.name}", "--start"),
        *("--endpos", end, "--no-loop", "--file", "-"),
    )
    assert "table public.t: INSERT: id[bigint]:1 name[text]:'one'" in received
    assert received.rstrip().splitlines()[-1].startswith("COMMIT")


def test_each_server_has_the_version_its_name_says(
    postgres15: PostgresServer, postgres18: PostgresServer
) -> None:
    versions = [
        server.query("postgres", "select current_setting('server_version_num')::int / 10000")
        for server in (postgres15, postgres18)
    ]
    assert versions == [[(15,)], [(18,)]]


def test_a_setting_is_changed_and_brought_back(postgres: PostgresServer) -> None:
    shown = "select current_setting('wal_sender_timeout')"
    before = postgres.query("postgres", shown)
    postgres.configure(wal_sender_timeout="3s")
    assert postgres.query("postgres", shown) == [("3s",)]
    postgres.configure(wal_sender_timeout=None)
    assert postgres.query("postgres", shown) == before


def test_a_private_server_survives_a_crash(
    private_postgres: Callable[..., PostgresServer],
) -> None:
    server = private_postgres(18, fsync="on")
    server.execute("postgres", "create table t as select 1 as id")
    server.restart("immediate")
    assert server.query("postgres", "select id from t") == [(1,)]


def test_a_database_leaves_no_slot_behind(database: Database) -> None:
    server, name = database.server, database.name
    database.execute("select pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    server.drop_database(name)
    left = "select count(*) from pg_replication_slots where slot_name = 'left_behind'"
    assert server.query("postgres", left) == [(0,)]


def test_redis_forgets_when_stopped_and_remembers_a_dump(redis_server: RedisServer) -> None:
    with redis.from_url(redis_server.url) as client:
        client.set("term", 7)
        dump = redis_server.save_dump()
        redis_server.stop()
        redis_server.start()
        assert client.get("term") is None
        redis_server.restore_dump(dump)
        assert client.get("term") == b"7"


def test_redis_is_lent_empty(redis_server: RedisServer) -> None:
    with redis.from_url(redis_server.url) as client:
        assert client.dbsize() == 0


def test_spark_reads_a_delta_table_that_another_writer_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1, 2], "name": ["one", "two"]}))
    rows = spark.read.format("delta").load(str(tmp_path)).orderBy("id").toArrow()
    assert rows.to_pylist() == [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]


def start_stream(database: Database, dsn: str, log: Path) -> ChildProcess:
    program = database.server.bin("pg_recvlogical")
    options = ["--slot", f"stream_{database.name}", "--start", "--file", "-", "--no-loop"]
    return ChildProcess(
        [program, "--dbname", dsn, *options, "--status-interval", "1", "--fsync-interval", "0"],
        log=log,
    )


@pytest.fixture
def stream_slot(database18: Database) -> Database:
    database18.execute("create table t (id bigint primary key)")
    database18.execute(
        "select pg_create_logical_replication_slot(%s, 'test_decoding')",
        [f"stream_{database18.name}"],
    )
    return database18


def test_the_proxy_records_every_status_update(
    stream_slot: Database, make_proxy: Callable[..., WireProxy], tmp_path: Path
) -> None:
    server = stream_slot.server
    slot = "select confirmed_flush_lsn::text from pg_replication_slots where database = %s"
    confirmed = [parse_lsn(stream_slot.query(slot, [stream_slot.name])[0][0])]

    def read_confirmed(_status: StatusUpdate) -> None:
        confirmed.append(parse_lsn(stream_slot.query(slot, [stream_slot.name])[0][0]))

    proxy = make_proxy(server.port, read_confirmed)
    began = time.time()
    client = start_stream(
        stream_slot, server.tcp_dsn(stream_slot.name, proxy.port), tmp_path / "stream"
    )
    stream_slot.execute("insert into t values (1)")
    (written,) = stream_slot.query("select pg_current_wal_lsn()::text")[0]
    wait_for(
        lambda: any(s.flushed >= parse_lsn(written) for s in proxy.status_updates),
        DEADLINE_S,
        "a status update that confirms the insert",
    )
    client.stop(signal.SIGINT)
    flushed = [status.flushed for status in proxy.status_updates]
    assert flushed == sorted(flushed)
    assert all(began <= status.at <= time.time() for status in proxy.status_updates)
    promised = confirmed[:1]
    for flush, known_by_the_server in zip(flushed, confirmed[1:], strict=True):
        assert known_by_the_server <= max(promised)
        promised.append(flush)
    kinds = {(frame.direction, frame.kind) for frame in proxy.frames}
    assert {(Direction.FROM_CLIENT, b""), (Direction.FROM_SERVER, b"W")} <= kinds


@pytest.mark.parametrize("harm", ["cut", "reset_after"])
def test_the_proxy_breaks_a_connection(
    harm: str, stream_slot: Database, make_proxy: Callable[..., WireProxy], tmp_path: Path
) -> None:
    server = stream_slot.server
    proxy = make_proxy(server.port)
    client = start_stream(
        stream_slot, server.tcp_dsn(stream_slot.name, proxy.port), tmp_path / "stream"
    )
    wait_for(lambda: proxy.status_updates, DEADLINE_S, "the stream to begin")
    if harm == "cut":
        proxy.cut()
    else:
        proxy.reset_after(40, Direction.FROM_SERVER)
        stream_slot.execute("insert into t values (1)")
    assert client.wait(DEADLINE_S) == 1


def test_a_paused_proxy_holds_what_it_got_and_sends_it_later(
    database18: Database, make_proxy: Callable[..., WireProxy]
) -> None:
    server = database18.server
    proxy = make_proxy(server.port)
    with psycopg.connect(server.tcp_dsn(database18.name, proxy.port), autocommit=True) as client:
        backend = client.info.backend_pid
        arrived = "select query = 'select 1' from pg_stat_activity where pid = %s"
        proxy.pause()
        client.pgconn.send_query(b"select 1")
        client.pgconn.flush()
        wait_for(
            lambda: any(frame.kind == b"Q" for frame in proxy.frames),
            DEADLINE_S,
            "the proxy to receive the query",
        )
        assert database18.query(arrived, [backend]) == [(False,)]
        proxy.resume()
        wait_for(
            lambda: database18.query(arrived, [backend]) == [(True,)],
            DEADLINE_S,
            "the query to arrive",
        )
        result = client.pgconn.get_result()
        assert result is not None
        assert result.get_value(0, 0) == b"1"
        assert client.pgconn.get_result() is None


def test_frames_are_the_same_however_the_bytes_are_cut() -> None:
    ssl_request = bytes.fromhex("00000008 04d2162f")
    startup = bytes.fromhex("0000000f 00030000 7573657200 00 00")[:15]
    status = b"d" + (38).to_bytes(4) + b"r" + (7).to_bytes(8) * 3 + bytes(8) + b"\x01"
    sent = ssl_request + startup + status + b"X\0\0\0\x04"

    def kinds(size: int) -> list[tuple[bytes, int]]:
        reader = FrameReader(Direction.FROM_CLIENT)
        pieces = (sent[i : i + size] for i in range(0, len(sent), size))
        return [(f.kind, f.size) for piece in pieces for f in reader.read(piece, 0.0)]

    assert kinds(len(sent)) == [(b"", 4), (b"", 11), (b"d", 34), (b"X", 0)]
    assert all(kinds(size) == kinds(len(sent)) for size in range(1, len(sent)))


def test_children_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, os, signal\n"
        "from tests.child_process import ChildProcess\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "child = ChildProcess(['sleep', '600'], log=folder / 'log', folder=folder)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = tmp_path / "child"
    folder.mkdir()
    parent = subprocess.run(
        [sys.executable, "-c", program, folder],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    wait_for(lambda: not is_alive(pid), DEADLINE_S, "the orphan to be killed")
    wait_for(lambda: not folder.exists(), DEADLINE_S, "the orphan's folder to be removed")


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_missing_server_is_a_skip_by_hand_and_a_failure_where_all_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WALGATE_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="PostgreSQL 99 is missing"):
        report_missing("PostgreSQL 99", "wait some years")
    monkeypatch.setitem(os.environ, "WALGATE_REQUIRE", "all")
    with pytest.raises(pytest.fail.Exception, match="PostgreSQL 99 is missing"):
        report_missing("PostgreSQL 99", "wait some years")


def test_waiting_ends_at_its_deadline() -> None:
    with pytest.raises(DeadlineMissedError, match="in vain for rain"):
        wait_for(lambda: False, 0.05, "rain")
