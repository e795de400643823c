"""A backfill has a capture, whoever held the slot when it began."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from cdc_core.errors import SlotLost
from cdc_core.settings import Settings, load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from orchestration.capture import own_capture
from tests.backfill.folded_log import fold, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import Database, PostgresServer


def test_a_slot_that_another_holds_to_the_end_is_not_asked_for(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []
    monkeypatch.setattr(own_capture, "capture", lambda settings, _: asked.append(settings))
    capture = pipeline.start_streaming()
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    with own_capture.ensuring_capture(settings, threading.Event()):
        pass
    assert not asked
    pipeline.finish(capture)


def test_a_slot_that_another_leaves_meanwhile_is_taken(
    database18: Database, pipeline: Pipeline
) -> None:
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("insert into t select i, 'old' from generate_series(1, 500) i")
    # Its capture's last moments: it has the slot, and takes up no step any more.
    options = "proto_version '1', publication_names 'walgate'"
    holder = psycopg.connect(f"{database18.dsn} replication=database", autocommit=True)
    with closing(holder), ThreadPoolExecutor(1) as pool:
        holder.pgconn.exec_(
            f"START_REPLICATION SLOT {pipeline.slot} LOGICAL 0/0 ({options})".encode()
        )
        assert pipeline.slot_facts()["pid"] is not None
        settings = load_settings(pipeline.folder / "walgate.toml", {})
        tables, stop = [TableName("public", "t")], threading.Event()
        running = pool.submit(
            run_backfills, settings, tables, chunk_rows=100, parallel=1, stop=stop
        )
        looks = "select 1 from pg_stat_activity where application_name = 'walgate backfill'"
        wait_for(lambda: database18.query(looks), DEADLINE_S, "the backfill to begin")
        holder.close()
        assert running.result(DEADLINE_S)
    assert fold(pipeline.root, "public.t") == read_source(database18, "t")


@pytest.mark.parametrize("loss", ["lost", "missing"])
def test_a_backfill_whose_slot_is_gone_ends_with_the_reason(
    private_postgres: Callable[..., PostgresServer],
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
) -> None:
    monkeypatch.setattr(own_capture, "_BETWEEN_RUNS_S", 1.0)
    monkeypatch.setattr(own_capture, "_LOOK_AGAIN_S", 0.2)
    server = private_postgres(18, max_slot_wal_keep_size="1MB", min_wal_size="32MB")
    database = server.create_database("source")
    database.execute("create table t (id int primary key)")
    pipeline = make_pipeline(database)
    capture = pipeline.start_streaming()
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    ended = threading.Event()

    def wait_for_end() -> None:
        with own_capture.ensuring_capture(settings, ended):
            pipeline.finish(capture)
            database.query("select pg_drop_replication_slot(%s)", [pipeline.truth_slot])
            if loss == "missing":
                database.query("select pg_drop_replication_slot(%s)", [pipeline.slot])
            else:
                lose_slot(database, pipeline.slot)
            # The backfill ends by this event.
            assert ended.wait(DEADLINE_S)

    with pytest.raises(SlotLost, match=pipeline.slot) as lost:
        wait_for_end()
    assert lost.value.exit_code == 4


def lose_slot(database: Database, slot: str) -> None:
    """Write so much that the server gives the slot up."""
    status = "select wal_status from pg_replication_slots where slot_name = %s"

    def write() -> bool:
        database.execute("select pg_logical_emit_message(false, 'x', repeat('x', 100000))")
        database.execute("select pg_switch_wal()")
        database.execute("checkpoint")
        return database.query(status, [slot]) == [("lost",)]

    wait_for(write, DEADLINE_S, "the slot to be lost")
