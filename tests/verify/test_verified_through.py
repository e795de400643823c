"""Verification in Dagster: the check of each table, and when it is due."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from cdc_core.settings import load_settings
from cdc_core.staging.verifications import VerificationLedger, Verified
from cdc_core.vocabulary import Lsn, TableName
from orchestration.merge.tables import build_table_assets
from orchestration.runs.keys import AssetKeys
from orchestration.verification.verified_through import (
    JOB_NAME,
    build_verification,
    build_verify_schedule,
    find_last,
)
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.verify.verifying import Verifying, make_verifying

TABLES = [TableName("public", name) for name in ("notes", "bare", "ids")]


@pytest.fixture
def verifying(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> Verifying:
    """Lend a lake of three tables, of which one has no key; a run takes a part of 40 rows."""
    database18.execute("create table notes (id bigint primary key, note text)")
    database18.execute("create table bare (note text)")
    database18.execute("create table ids (id text primary key)")
    lent = make_verifying(make_pipeline, database18, spark)
    with (lent.pipeline.folder / "walgate.toml").open("a") as opened:
        opened.write("[verify]\nrows_per_run = 40\n")
    database18.execute("insert into notes select n, 'x' from generate_series(1, 100) n")
    database18.execute("insert into ids select md5(n::text) from generate_series(1, 100) n")
    lent.merge()
    return lent


def make_definitions(verifying: Verifying) -> dg.Definitions:
    """What Dagster loads, with the session of the tests."""

    class Session(LazyPySparkResource):
        @property
        def spark_session(self) -> SparkSession:
            return verifying.session

    checks = build_verification(verifying.settings, TABLES)
    assert checks is not None
    return dg.Definitions(
        assets=[build_table_assets(verifying.settings, TABLES)],
        asset_checks=[checks],
        jobs=[dg.define_asset_job(JOB_NAME, selection=dg.AssetSelection.checks(checks))],
        resources={"spark": Session(spark_config={})},
        executor=dg.in_process_executor,
    )


def run(
    verifying: Verifying, instance: dg.DagsterInstance, **config: Any
) -> dict[str, tuple[bool, dict[str, Any]]]:
    """Run the job; what each check said, by table."""
    job = make_definitions(verifying).resolve_job_def("verify")
    result = job.execute_in_process(
        instance=instance, run_config={"ops": {"verify_tables": {"config": config}}}
    )
    return {
        found.asset_key.path[-1]: (
            found.passed,
            {name: value.value for name, value in found.metadata.items()},
        )
        for found in result.get_asset_check_evaluations()
    }


def test_large_tables_are_verified_in_rotation(verifying: Verifying) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        told = [run(verifying, instance) for _ in range(3)]
        for name in ("notes", "ids"):
            assert [one[name][0] for one in told] == [True] * 3
            assert 0.3 < told[0][name][1]["covered_percent"] / 100 < 0.5
            assert "verified_through" not in told[1][name][1]
            last = told[2][name][1]
            assert last["verified_through"] == told[0][name][1]["lsn"] != last["lsn"]
            counted = [one[name][1]["source_rows"] for one in told]
            assert sum(counted) == 100
            assert max(counted) < 60
        passed, metadata = told[0]["bare"]
        assert not passed
        assert metadata["reason"].startswith("it has no key")
        records = instance.fetch_observations(AssetKeys().find_table(TABLES[0]), limit=10).records
        assert len(records) == 3

        verifying.damage("notes", "delete from {} where id = 99")
        passed, metadata = run(verifying, instance, whole=True, heal=True)["notes"]
        assert (passed, metadata["healed"], metadata["source_rows"]) == (True, True, 100)
        assert metadata["keys_different"] == 1


def test_a_verification_is_due_as_long_after_the_last_as_the_settings_say(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (pipeline.folder / "walgate.toml").open("a") as opened:
        opened.write('[verify]\nevery = "30min"\n')
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    schedule = build_verify_schedule(settings, TABLES)

    def tick(instance: dg.DagsterInstance, after: timedelta) -> dg.ScheduleExecutionData:
        now = time.time() + after.total_seconds()
        monkeypatch.setattr("orchestration.runs.due_schedule.read_clock", lambda: now)
        moment = datetime.now(UTC)
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=moment)
        return schedule.evaluate_tick(context)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert tick(instance, timedelta()).skip_message == "nothing was staged yet"
        pipeline.catch_up()
        early = tick(instance, timedelta(minutes=1))
        assert (early.skip_message or "").startswith("due in 1")
        due = tick(instance, timedelta(minutes=31))
        assert [request.run_key for request in due.run_requests or ()] == ["first"]
        began = find_last(settings, TABLES, now=time.time())
        ledger = VerificationLedger(settings.lake.root)
        found = [Verified(one, 1, Lsn(16), "skipped", reason="halted") for one in TABLES]
        ledger.record(found[:1])
        # A person verified one table: that puts off the verification of no other.
        assert find_last(settings, TABLES, now=time.time()) == began
        ledger.record(found[1:])
        last = find_last(settings, TABLES, now=time.time())
        early = tick(instance, timedelta(minutes=1))
        assert (early.skip_message or "").startswith("due in 1")
        # The clock was a year ahead when that was recorded, and when the log began.
        due = tick(instance, timedelta(days=-365))
        assert [request.run_key for request in due.run_requests or ()] == ["first"]
    assert began is not None
    assert last is not None
    assert last > began
