"""F32: a connection is cut or half-open, its server stands still; capture comes back by itself.

A path whose other end no longer answers gives no error: only silence tells. The proxy's kernel and
that of a stopped server go on acknowledging, so that TCP's own timers see nothing here.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from tests.deadline import DeadlineMissedError, wait_for
from tests.fix_pipeline import Pipeline
from tests.fix_proxy import WireProxy
from tests.postgres_server import Database, PostgresServer
from tests.wire import Direction

SILENCE_S = 3
MakeProxy = Callable[..., WireProxy]
MakePipeline = Callable[..., Pipeline]


def insert_rows(pipeline: Pipeline, count: int, *, size: int = 1) -> None:
    """Insert rows, each in its own transaction."""
    for _ in range(count):
        pipeline.database.execute(f"insert into orders (note) values (repeat('x', {size}))")


def make_proxied(
    database: Database, make_pipeline: MakePipeline, make_proxy: MakeProxy
) -> tuple[Pipeline, WireProxy]:
    """Give a pipeline that reaches its server through a proxy."""
    database.execute("create table orders (id bigserial primary key, note text)")
    proxy = make_proxy(database.server.port)
    dsn = database.server.tcp_dsn(database.name, port=proxy.port)
    pipeline = make_pipeline(database, dsn=dsn)
    pipeline.environment = {"WALGATE_SOURCE__SILENCE_TIMEOUT": f"{SILENCE_S}s"}
    return pipeline, proxy


def test_f32_a_connection_cut_in_mid_message_is_made_again(
    database18: Database, make_pipeline: MakePipeline, make_proxy: MakeProxy, seed: int
) -> None:
    pipeline, proxy = make_proxied(database18, make_pipeline, make_proxy)
    child = pipeline.start_streaming()
    chosen = random.Random(seed)
    for count in range(1, 4):
        # Anywhere in some frames of 3 kB, the server's and, once, ours.
        direction = Direction.FROM_CLIENT if count == 3 else Direction.FROM_SERVER
        proxy.reset_after(chosen.randrange(1, 60 if count == 3 else 9000), direction)
        insert_rows(pipeline, 5, size=3000)
        pipeline.wait_for_lines(child, "session ended", count)
        pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(child)
    assert pipeline.require_truth() == 15


def test_f32_a_half_open_connection_is_noticed_in_time_and_left(
    database18: Database, make_pipeline: MakePipeline, make_proxy: MakeProxy
) -> None:
    pipeline, proxy = make_proxied(database18, make_pipeline, make_proxy)
    child = pipeline.start_streaming()
    insert_rows(pipeline, 2)
    pipeline.wait_until_staged(pipeline.current_lsn())
    stranded_at = time.monotonic()
    proxy.strand()
    pipeline.wait_for_line(child, "session ended")
    # The server's last word may be a quarter of the time old, and a busy machine needs its own.
    assert time.monotonic() - stranded_at < SILENCE_S + 5
    insert_rows(pipeline, 2)
    pipeline.wait_until_staged(pipeline.current_lsn())
    assert "no answer" in child.output()
    pipeline.finish(child)
    assert pipeline.require_truth() == 4


def test_f32_a_server_that_stands_still_is_noticed_and_followed_once_it_goes_on(
    private_postgres: Callable[..., PostgresServer],
    make_pipeline: MakePipeline,
) -> None:
    server = private_postgres()
    pipeline = make_pipeline(server.create_database("shop"))
    pipeline.database.execute("create table orders (id bigserial primary key, note text)")
    child = pipeline.start_streaming(
        WALGATE_SOURCE__SILENCE_TIMEOUT=f"{SILENCE_S}s", WALGATE_SOURCE__CONNECT_TIMEOUT="2s"
    )
    insert_rows(pipeline, 2)
    pipeline.wait_until_staged(pipeline.current_lsn())
    postmaster = psutil.Process(server.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    stopped_at = time.monotonic()
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        pipeline.wait_for_line(child, "session ended")
        assert time.monotonic() - stopped_at < SILENCE_S + 5
        # A second try has failed too: it does not hang on a server that takes connections only.
        pipeline.wait_for_lines(child, "session ended", 2)
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
    insert_rows(pipeline, 2)
    pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(child)
    assert pipeline.require_truth() == 4


def test_f32_a_path_on_which_nothing_happens_is_not_taken_for_a_dead_one(
    database18: Database, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(database18)
    child = pipeline.start_streaming(
        WALGATE_SOURCE__SILENCE_TIMEOUT="1s", WALGATE_CAPTURE__HEARTBEAT_SECONDS="60s"
    )
    before = pipeline.slot_facts()["pid"]
    with pytest.raises(DeadlineMissedError):
        wait_for(lambda: pipeline.slot_facts()["pid"] != before, 3.0, "the connection to change")
    pipeline.finish(child)
    assert "session ended" not in child.output()


@pytest.mark.parametrize("wal_sender_timeout", ["60s", pytest.param("0", marks=pytest.mark.soak)])
def test_f32_a_replicated_source_is_asked_to_notice_our_silence_in_the_same_time(
    database18: Database, make_pipeline: MakePipeline, wal_sender_timeout: str
) -> None:
    name = database18.name
    database18.execute(f"alter database {name} set wal_sender_timeout = '{wal_sender_timeout}'")
    database18.execute("create table orders (id bigserial primary key, note text)")
    pipeline = make_pipeline(database18)
    child = pipeline.start_streaming(WALGATE_SOURCE__SILENCE_TIMEOUT=f"{SILENCE_S}s")
    child.send(signal.SIGSTOP)
    successor = pipeline.start()
    pipeline.wait_for_line(successor, "capture started")
    insert_rows(pipeline, 1)
    pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(successor)
    child.kill()
    assert pipeline.require_truth() == 1
