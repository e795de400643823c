"""Connections: the kernel's timers follow the configured time; no answer is waited for for ever."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import closing

import psycopg
import pytest

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection, source_errors
from cdc_core.source.identity import list_published_tables
from tests.deadline import wait_for
from tests.postgres_server import Database

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = %s"


def read_timers(source: SourceSettings) -> list[int]:
    """Give idle seconds, interval, count and the user timeout in ms of a new connection."""
    options = (
        *(socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT),
    )
    with (
        closing(open_connection(source)) as connection,
        closing(socket.socket(fileno=os.dup(connection.fileno()))) as end,
    ):
        return [end.getsockopt(socket.IPPROTO_TCP, option) for option in options]


def test_a_dead_peer_is_noticed_by_the_kernel_in_the_configured_time(database18: Database) -> None:
    dsn = database18.server.tcp_dsn(database18.name)
    assert read_timers(SourceSettings(dsn=dsn)) == [10, 5, 3, 30_000]
    assert read_timers(SourceSettings(dsn=dsn, silence_timeout=6.0)) == [2, 1, 3, 6_000]
    own = database18.server.tcp_dsn(database18.name, keepalives_idle=77)
    assert read_timers(SourceSettings(dsn=own)) == [77, 5, 3, 30_000]


def test_an_answer_that_does_not_come_in_time_gives_the_connection_up(database18: Database) -> None:
    source = SourceSettings(dsn=database18.dsn)
    with closing(open_connection(source, answer_s=0.5)) as connection:
        started = time.monotonic()
        with (
            pytest.raises(SourceError, match=r"no answer for 0\.5 s") as caught,
            source_errors("wait"),
        ):
            connection.execute("select pg_sleep(60)")
        assert time.monotonic() - started < 10
        assert caught.value.retry is Retry.LATER
        assert connection.closed


def test_who_looks_does_not_wait_behind_an_alter_table_that_waits_itself(
    database18: Database,
) -> None:
    # From 16 on the server opens each table to list it.
    database18.execute("create table t (a int primary key)")
    database18.execute("create publication walgate for table t")
    alter = threading.Thread(target=database18.execute, args=("alter table t add b int",))
    with psycopg.connect(database18.dsn) as reader:
        reader.execute("select from t")
        alter.start()
        wait_for(lambda: database18.query(WAITING, [database18.name]) == [(1,)], 10, "it to wait")
        source = SourceSettings(dsn=database18.dsn)
        with (
            closing(open_connection(source, lock_s=0.2)) as connection,
            pytest.raises(SourceError, match="lock timeout: another session alters") as caught,
        ):
            list_published_tables(connection, ("walgate",))
        assert caught.value.retry is Retry.LATER
        assert "pg_blocking_pids" in caught.value.fix
    alter.join()
