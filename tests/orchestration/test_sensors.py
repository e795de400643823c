from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from cdc_core.settings import Settings, load_settings
from cdc_core.source.connection import open_for_quick_query
from cdc_core.staging.backfills import BackfillLedger, Begun
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.assembly import build_definitions
from orchestration.backfill import queue
from orchestration.runs.hosting import WORKER_TAG, format_worker
from orchestration.runs.relaunch import PARTITION_TAG
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import queue_tables
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

Status = dg.DagsterRunStatus
TABLE = "create table notes (id bigint primary key, text text)"


class Deployment:
    """A pipeline under an instance of its own, without processes: its sensors are asked here."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.definitions = build_definitions(settings)

    def tick(self, sensor: str, cursor: str | None = None) -> dg.SensorResult:
        context = dg.build_sensor_context(instance=self.instance, cursor=cursor)
        result = self.definitions.resolve_sensor_def(sensor)(context)
        assert isinstance(result, dg.SensorResult)
        return result

    def reason(self, sensor: str) -> str:
        result = self.tick(sensor)
        assert not result.run_requests, result.run_requests
        assert isinstance(result.skip_reason, dg.SkipReason)
        return str(result.skip_reason.skip_message)

    def request(self, sensor: str) -> dg.RunRequest:
        result = self.tick(sensor)
        assert result.run_requests, result.skip_reason
        (request,) = result.run_requests
        return request

    def add_run(
        self,
        job: str,
        status: dg.DagsterRunStatus,
        worker: str,
        partition: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> dg.DagsterRun:
        definition = self.definitions.resolve_job_def(job)
        tags = {**definition.tags, WORKER_TAG: worker}
        tags |= {PARTITION_TAG: partition} if partition else {}
        return self.instance.create_run_for_job(
            definition, status=status, tags=tags, run_config=config
        )


def load(pipeline: Pipeline) -> Settings:
    return load_settings(pipeline.folder / "walgate.toml", {})


@pytest.fixture
def deployment(pipeline: Pipeline) -> Iterator[Deployment]:
    """Lend the deployment of a fresh pipeline."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(load(pipeline), instance)


@pytest.fixture
def alive() -> str:
    """Lend the signature of a process that lives."""
    return format_worker(os.getpid())


@pytest.fixture
def gone() -> str:
    """Lend the signature of a process that was killed."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    signature = format_worker(child.pid)
    child.kill()
    child.communicate()
    return signature


def test_a_free_slot_gets_a_run(deployment: Deployment) -> None:
    assert deployment.request("keep_replicating").run_key == "first"


def test_checks_that_a_clock_dated_far_ahead_are_evaluated_again(deployment: Deployment) -> None:
    first = deployment.tick("keep_replicating")
    assert first.asset_events
    assert not deployment.tick("keep_replicating", first.cursor).asset_events
    ahead = f"{float(first.cursor or 0) + 365 * 86_400:.0f}"
    assert deployment.tick("keep_replicating", ahead).asset_events


def test_a_slot_that_another_capture_holds_gets_none(
    deployment: Deployment, pipeline: Pipeline
) -> None:
    capture = pipeline.start_streaming()
    assert "and belongs to no run" in deployment.reason("keep_replicating")
    pipeline.finish(capture)
    deployment.request("keep_replicating")


def test_a_live_run_is_left_alone_and_told_of(
    deployment: Deployment, pipeline: Pipeline, alive: str
) -> None:
    run = deployment.add_run("replicate", Status.STARTED, alive)
    assert deployment.reason("keep_replicating") == (
        f"run {run.run_id[:8]} does not hold the slot yet"
    )
    capture = pipeline.start_streaming()
    assert "streams, confirmed " in deployment.reason("keep_replicating")
    pipeline.finish(capture)


def test_a_killed_run_is_recorded_as_failed_and_followed(deployment: Deployment, gone: str) -> None:
    run = deployment.add_run("replicate", Status.STARTED, gone)
    assert "is gone; it is recorded as failed" in deployment.reason("keep_replicating")
    found = deployment.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is Status.FAILURE
    assert deployment.request("keep_replicating").run_key == f"after:{run.run_id}"


def test_a_verification_whose_worker_was_killed_is_followed_by_another(
    pipeline: Pipeline, database18: Database, gone: str, tmp_path: Path
) -> None:
    database18.execute(TABLE)
    pipeline.catch_up()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        deployment = Deployment(load(pipeline), instance)
        schedule = deployment.definitions.resolve_schedule_def("verify_in_rotation")
        moment = datetime.now(UTC)

        def tick() -> str:
            context = dg.build_schedule_context(instance, scheduled_execution_time=moment)
            return schedule.evaluate_tick(context).skip_message or ""

        killed = deployment.add_run("verify", Status.STARTED, gone)
        assert tick() == f"the worker of run {killed.run_id[:8]} is gone; it is recorded as failed"
        record = instance.get_run_by_id(killed.run_id)
        assert record is not None
        assert record.status is Status.FAILURE
        assert tick().startswith("due in ")


def test_a_killed_run_is_not_followed_while_the_slot_is_held(
    deployment: Deployment, pipeline: Pipeline, gone: str
) -> None:
    capture = pipeline.start_streaming()
    deployment.add_run("replicate", Status.STARTED, gone)
    assert "recorded as failed" in deployment.reason("keep_replicating")
    assert "and belongs to no run" in deployment.reason("keep_replicating")
    pipeline.finish(capture)


def test_a_missing_slot_is_named_with_its_fix(
    deployment: Deployment, pipeline: Pipeline, database18: Database
) -> None:
    database18.query("select pg_drop_replication_slot(%s)", [pipeline.slot])
    reason = deployment.reason("keep_replicating")
    assert f"slot {pipeline.slot} does not exist" in reason
    assert "Fix: " in reason


def test_a_source_that_is_down_starts_no_run_and_breaks_no_page(
    pipeline: Pipeline, alive: str
) -> None:
    pipeline.write_configuration("host=127.0.0.1 port=1 dbname=nothing user=nobody")
    with dg.DagsterInstance.ephemeral() as instance:
        deployment = Deployment(load(pipeline), instance)
        reason = deployment.reason("keep_replicating")
        assert "cannot connect to the source" in reason
        assert "Fix: " in reason
        deployment.add_run("replicate", Status.STARTED, alive)
        assert "waits for the source" in deployment.reason("keep_replicating")


def test_a_merge_starts_for_changes_and_not_for_marks(
    deployment: Deployment, pipeline: Pipeline, database18: Database, alive: str
) -> None:
    assert deployment.reason("merge_staged_changes") == "nothing was staged yet"
    pipeline.catch_up()
    assert "no changes above the cut: merged nothing" in deployment.reason("merge_staged_changes")
    database18.execute(TABLE)
    database18.execute("insert into notes values (1, 'one'), (2, 'two')")
    pipeline.catch_up()
    request = deployment.request("merge_staged_changes")
    assert request.run_config["ops"]["merge_tables"]["config"]["linger_seconds"] == 60
    run = deployment.add_run("merge", Status.STARTED, alive)
    reason = deployment.reason("merge_staged_changes")
    assert reason.startswith(f"run {run.run_id[:8]} merges; 2 changes to merge: merged nothing")


def test_a_merge_that_a_person_clicked_is_waited_for(
    deployment: Deployment, pipeline: Pipeline, database18: Database, gone: str
) -> None:
    database18.execute(TABLE)
    database18.execute("insert into notes values (1, 'one')")
    pipeline.catch_up()
    run = deployment.add_run("__ASSET_JOB", Status.STARTED, gone)
    assert f"run {run.run_id[:8]} is gone" in deployment.reason("merge_staged_changes")
    deployment.request("merge_staged_changes")


def test_tables_that_may_lack_rows_are_read_by_runs(
    deployment: Deployment,
    pipeline: Pipeline,
    database18: Database,
    monkeypatch: pytest.MonkeyPatch,
    alive: str,
    gone: str,
) -> None:
    sensor = "backfill_queued_tables"
    questions: list[str] = []

    def connect(*arguments: Any, **named: Any) -> psycopg.Connection:
        questions.append(named["application_name"])
        return open_for_quick_query(*arguments, **named)

    monkeypatch.setattr(queue, "open_for_quick_query", connect)
    assert deployment.reason(sensor) == "no table waits for a backfill"
    database18.execute("create table keyless (id bigint)")
    database18.execute(TABLE)
    database18.execute("insert into notes values (1, 'one')")
    # What the source said holds for a minute.
    assert deployment.reason(sensor) == "no table waits for a backfill"
    assert len(questions) == 1
    later = time.monotonic() + 61
    monkeypatch.setattr(queue, "read_clock", lambda: later)
    assert deployment.reason(sensor) == "1 table waits; capture does not hold the slot now"
    capture = pipeline.start_streaming()
    request = deployment.request(sensor)
    assert (request.partition_key, request.run_key) == ("public/notes", "public/notes first")
    assert request.run_config["ops"]["backfill"]["config"] == {"dry_run": False, "anew": False}
    run = deployment.add_run("backfill_tables", Status.STARTED, alive, partition="public/notes")
    assert deployment.reason(sensor) == f"run {run.run_id[:8]} reads public/notes"
    deployment.instance.delete_run(run.run_id)
    run = deployment.add_run("backfill_tables", Status.STARTED, gone, partition="public/notes")
    assert "is gone; it is recorded as failed" in deployment.reason(sensor)
    assert deployment.request(sensor).run_key == f"public/notes after:{run.run_id}"
    # What a person cancelled is left alone, until more is asked for than that.
    ledger, lake = (
        BackfillLedger(pipeline.lake),
        Lake(pipeline.lake),
    )
    notes = TableName("public", "notes")
    begun = Begun("0" * 32, notes, Position(1, Lsn(8), 0))
    ledger.record_begun(begun, 1)
    assert deployment.request(sensor).partition_key == "public/notes", "its worker was killed"
    ledger.record_state(begun, BackfillState.CANCELLED)
    assert deployment.reason(sensor) == "no table waits for a backfill"
    queue_tables(lake, [notes], reason="the slot was lost", since=Bound(1, Lsn(9)))
    config = deployment.request(sensor).run_config["ops"]["backfill"]["config"]
    assert config == {"dry_run": False, "anew": True}
    database18.execute("create table more (id bigint primary key)")
    asked = len(questions)
    # The log announces it, which is looked at each time.
    database18.execute("insert into more values (1)")
    pipeline.wait_until_staged(pipeline.current_lsn())
    requests = deployment.tick(sensor).run_requests or []
    assert [one.partition_key for one in requests] == ["public/more", "public/notes"]
    assert 0 < len(questions) - asked <= 2, questions
    done = run_walgate("backfill", "--anew", folder=pipeline.folder)
    assert done.exit_code == 0, done
    assert deployment.reason(sensor) == "no table waits for a backfill"
    pipeline.finish(capture)


def test_small_tables_are_read_by_one_run_that_is_told_from_others(
    deployment: Deployment, pipeline: Pipeline, database18: Database, alive: str
) -> None:
    sensor = "backfill_queued_tables"
    for name in ("one", "two"):
        database18.execute(f"create table {name} (id bigint primary key)")
    capture = pipeline.start_streaming()
    request = deployment.request(sensor)
    assert request.partition_key is None
    config = {"dry_run": False, "anew": False, "tables": ["public/one", "public/two"]}
    assert request.run_config["ops"]["backfill"]["config"] == config
    assert request.tags["walgate/tables"] == "public/one, public/two"
    job = deployment.definitions.resolve_job_def("backfill_tables")
    assert dg.validate_run_config(job, request.run_config)
    run = deployment.add_run("backfill_tables", Status.STARTED, alive, config=request.run_config)
    assert deployment.reason(sensor) == f"run {run.run_id[:8]} reads 2 tables"
    pipeline.finish(capture)


@pytest.mark.parametrize(
    ("autostart", "status"),
    [("true", dg.DefaultSensorStatus.RUNNING), ("false", dg.DefaultSensorStatus.STOPPED)],
)
def test_sensors_run_from_the_start_unless_told_not_to(
    pipeline: Pipeline, autostart: str, status: dg.DefaultSensorStatus
) -> None:
    settings = load_settings(
        pipeline.folder / "walgate.toml", {"WALGATE_DAGSTER__AUTOSTART": autostart}
    )
    definitions = build_definitions(settings)
    for name in ("keep_replicating", "merge_staged_changes", "backfill_queued_tables"):
        assert definitions.resolve_sensor_def(name).default_status is status
