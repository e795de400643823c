"""`walgate recover`: each disaster named, what is needed done, and every table whole afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from cdc_core.errors import SlotInUse, SourceError
from cdc_core.source.replication import ReplicationStream
from cdc_core.source.slot_renewal import drop_dead_slot
from cdc_core.staging.epochs import read_newest_epoch
from orchestration.recovery.recover import plan_recovery, recover
from orchestration.status.status import read_status
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Lake
from tests.backfill.test_crashes import start_worker
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.histories.test_history_14_restored_server import copy_cold, put_back
from tests.lakes import copy_lake, locate_lake
from tests.postgres_server import Database, PostgresServer
from tests.recover.recovering import (
    ORDERS,
    change,
    fill,
    list_files,
    lose_slot,
    read_settings,
    recover_whole,
    require_equal,
    require_whole,
    run_recover,
)
from tests.walgate_command import run_walgate

STEPS = (
    "after_recovery_begun",
    "after_slot_dropped",
    "after_slot_made",
    "after_tables_queued",
    "after_epoch_begun",
)

_NEEDS_A_PERSON = 4


@pytest.fixture
def filled(pipeline: Pipeline) -> Pipeline:
    """Lend a pipeline with something in its log."""
    fill(pipeline)
    return pipeline


def drop_slot(pipeline: Pipeline) -> None:
    pipeline.database.query("select pg_drop_replication_slot(%s)", [pipeline.slot])


def take_slot_away(pipeline: Pipeline) -> bool:
    """Try to drop the slot, and end the session that uses it, which may be a worker's own."""
    try:
        drop_slot(pipeline)
    except psycopg.errors.ObjectInUse:
        pipeline.database.query(
            "select pg_terminate_backend(active_pid) from pg_replication_slots"
            " where slot_name = %s and active",
            [pipeline.slot],
        )
        return False
    return True


@pytest.fixture
def lossy(
    private_postgres: Callable[..., PostgresServer], make_pipeline: Callable[..., Pipeline]
) -> Pipeline:
    """Lend a pipeline whose server gives up a slot that holds 16 MB."""
    sizes = {"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    pipeline = make_pipeline(private_postgres(18, **sizes).create_database("shop"))
    pipeline.database.query("select pg_drop_replication_slot(%s)", [pipeline.truth_slot])
    fill(pipeline)
    return pipeline


def test_a_slot_that_is_gone_made_again_or_ahead_of_an_older_lake_or_of_none(
    filled: Pipeline,
) -> None:
    drop_slot(filled)
    change(filled)
    plan = recover_whole(filled, f"slot {filled.slot} does not exist")
    assert (plan.number, plan.tables, plan.is_slot_made) == (2, (ORDERS,), True)

    drop_slot(filled)
    change(filled)
    filled.database.query(
        "select pg_create_logical_replication_slot(%s, 'pgoutput')", [filled.slot]
    )
    slot = filled.slot_facts()
    plan = recover_whole(filled, "past the staged LSN", "made again")
    assert (plan.number, plan.is_slot_made) == (3, False), "one that is there and lives is kept"
    epoch = read_newest_epoch(filled.lake)
    assert epoch is not None
    assert epoch.first_lsn == slot["confirmed"]

    copy = locate_lake(filled.folder / "copy")
    copy_lake(filled.lake, copy)
    change(filled)
    filled.catch_up()
    filled.lake.remove_folder()
    copy_lake(copy, filled.lake)
    assert recover_whole(filled, "past the staged LSN", "the lake is an older copy").number == 4

    change(filled)
    filled.lake.remove_folder()
    assert recover_whole(filled, f"the log is gone from {filled.lake}").number == 1


def test_without_yes_all_is_said_and_nothing_done(filled: Pipeline) -> None:
    answer = run_recover(filled)
    assert (answer.exit_code, answer.stdout.count("\n")) == (0, 1), answer
    assert "nothing to recover" in answer.stdout
    drop_slot(filled)
    files = list_files(filled.folder)
    answer = run_recover(filled)
    assert answer.exit_code == 1, answer
    for said in (
        f"slot {filled.slot} does not exist",
        f"1. begin epoch 2 in {filled.lake}",
        f"2. SELECT pg_create_logical_replication_slot('{filled.slot}', 'pgoutput');",
        "3. queue a whole backfill of 1 tables: public.orders",
        "Nothing was changed",
    ):
        assert said in answer.stdout, answer
    assert list_files(filled.folder) == files
    slots = "select 1 from pg_replication_slots where slot_name = %s"
    assert not filled.database.query(slots, [filled.slot])


def test_a_lost_slot_is_replaced_however_often_it_is_killed_meanwhile(lossy: Pipeline) -> None:
    lose_slot(lossy)
    answer = run_walgate("replicate", "--until-current", folder=lossy.folder)
    assert answer.exit_code == 4
    assert "run `walgate recover`" in answer.complaints[-1]
    for step in STEPS:
        answer = run_recover(lossy, "--yes", WALGATE_CRASH_AT=step)
        assert answer.exit_code == -9, (step, answer)
        if step == "after_slot_made":
            # A slot that lives is no reason to go on.
            answer = run_walgate("replicate", "--until-current", folder=lossy.folder)
            assert answer.exit_code == 4
            assert "did not finish" in answer.complaints[-1]
            told = read_status(read_settings(lossy))["problems"]
            assert "recovering" in {problem["code"] for problem in told}
    assert plan_recovery(read_settings(lossy)).breaks == (), "the last step was the last"
    backfilled = read_completeness(Lake.of(read_settings(lossy)))
    assert backfilled.find_incomplete("public.orders") is not None
    assert "recovering" not in {p["code"] for p in read_status(read_settings(lossy))["problems"]}
    require_whole(lossy)
    assert read_completeness(Lake.of(read_settings(lossy))).find_incomplete("public.orders") is None
    epoch = read_newest_epoch(lossy.lake)
    assert epoch is not None
    assert epoch.epoch == 2
    assert epoch.reason.startswith(f"recovered: slot {lossy.slot} is lost: wal_status lost")
    require_equal(lossy)


def test_a_backfill_that_runs_meanwhile_begins_again_in_the_new_epoch(
    filled: Pipeline, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    capture = filled.start_streaming()
    worker = start_worker(
        filled, tables=[str(ORDERS)], WALGATE_HOLD_AT=f"after_chunk_stored={held}"
    )
    spool = filled.spool
    wait_for(lambda: list(spool.glob("chunk-*.arrow")), DEADLINE_S, "a chunk to stand open")
    filled.finish(capture)
    wait_for(lambda: take_slot_away(filled), DEADLINE_S, "the slot to be dropped")
    change(filled)
    settings = read_settings(filled)
    list(recover(settings, plan_recovery(settings)))
    # It ends at once where the worker has come to run one of its own.
    capture = filled.start()
    held.unlink()
    # Where it saw that the slot was missing, or the recovery under way, it has ended with that
    # reason; a person runs it again.
    if worker.wait(DEADLINE_S) == _NEEDS_A_PERSON:
        said = worker.output()
        assert "does not exist" in said or "did not finish" in said
        worker = start_worker(filled, tables=[str(ORDERS)])
    assert worker.wait(DEADLINE_S) == 0, worker.output()
    capture.stop()
    backfilled = read_completeness(Lake.of(settings))
    assert backfilled.find_incomplete(str(ORDERS)) is None, "one that began before is not enough"
    require_equal(filled)


@pytest.mark.soak
def test_history_14_a_restored_server_gets_a_new_epoch(
    private_postgres: Callable[..., PostgresServer], make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(private_postgres().create_database("shop"))
    server = pipeline.database.server
    fill(pipeline)
    copy_cold(server)
    change(pipeline)
    pipeline.catch_up()
    put_back(server)
    plan = plan_recovery(read_settings(pipeline))
    assert "went back in time" in plan.breaks[0]
    change(pipeline)
    change(pipeline)
    server.execute("postgres", "create table filler as select generate_series(1, 3000) i")
    assert pipeline.current_lsn() > pipeline.staged()
    plan = recover_whole(pipeline, "the server's history is not the one that was staged")
    assert plan.diagnosis.is_slot_dead


def test_history_12_another_server_with_smaller_lsns_outranks_the_old(
    filled: Pipeline, private_postgres: Callable[..., PostgresServer]
) -> None:
    old = filled.staged()
    other = private_postgres(18).create_database(filled.database.name)
    other.execute("create table orders (id int primary key, note text, v int default 0)")
    other.execute("insert into orders select i, 'other' from generate_series(20, 40) i")
    filled.database = other
    filled.write_configuration(other.dsn)
    with pytest.raises(SourceError, match="publication walgate does not exist"):
        list(recover(read_settings(filled), plan_recovery(read_settings(filled))))
    other.execute("create publication walgate for all tables")
    plan = recover_whole(filled, "the server's system identifier is")
    assert plan.is_slot_made
    epoch = read_newest_epoch(filled.lake)
    assert epoch is not None
    assert epoch.first_lsn < old, "this server was to have smaller LSNs"


def test_a_slot_in_use_or_of_others_is_left_alone(
    filled: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, slot = read_settings(filled), filled.slot
    filled.lake.remove_folder()
    monkeypatch.setattr("cdc_core.source.slot_renewal._PATIENCE_S", 0.0)
    with closing(ReplicationStream(settings.source)) as stream:
        stream.start(slot=slot, publications=settings.source.publication, origin="any")
        with pytest.raises(SlotInUse, match=f"PID {stream.pid}, expected nobody"):
            list(recover(settings, plan_recovery(settings)))
        assert not filled.lake.exists()
        with (
            psycopg.connect(filled.database.dsn, autocommit=True) as connection,
            pytest.raises(SlotInUse, match=f"PID {stream.pid}, expected nobody"),
        ):
            drop_dead_slot(connection, slot)
    drop_slot(filled)
    filled.database.query("select pg_create_physical_replication_slot(%s)", [slot])
    with pytest.raises(SourceError, match="is a physical slot"):
        plan_recovery(settings)
    with (
        psycopg.connect(filled.database.dsn, autocommit=True) as connection,
        pytest.raises(SourceError, match="is a physical slot"),
    ):
        drop_dead_slot(connection, slot)
    filled.database.query("select pg_drop_replication_slot(%s)", [slot])


def test_a_role_that_may_not_make_slots_is_given_the_sql(
    filled: Pipeline, database18: Database
) -> None:
    role = f"plain_{database18.name}"
    database18.execute(f"create role {role} login")
    database18.execute(f"grant select on all tables in schema public to {role}")
    try:
        drop_slot(filled)
        superuser = (filled.folder / "walgate.toml").read_text()
        filled.write_configuration(database18.dsn.replace("user=postgres", f"user={role}"))
        files = list_files(filled.folder)
        answer = run_recover(filled, "--yes")
        assert answer.exit_code == 4, answer
        create = f"SELECT pg_create_logical_replication_slot('{filled.slot}', 'pgoutput')"
        assert create in answer.complaints[-1]
        assert list_files(filled.folder) == files
        database18.query(create)
        change(filled)
        (filled.folder / "walgate.toml").write_text(superuser)
        recover_whole(filled, "past the staged LSN")
    finally:
        database18.execute(f"drop owned by {role}")
        database18.execute(f"drop role {role}")
