"""Maintenance from a shell and under Dagster: what it answers, plots, checks and schedules."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from cdc_core.comparing import OrdinalRange
from cdc_core.lake_layout import MAINTENANCE, VERIFICATIONS
from cdc_core.lake_storage.ledgers import append_numbered
from cdc_core.layout import VERIFICATIONS_SCHEMA
from cdc_core.settings import Settings, load_settings
from cdc_core.staging.maintenance import MaintenanceLedger
from cdc_core.staging.verifications import VerificationLedger, Verified
from cdc_core.vocabulary import Lsn, TableName
from orchestration.maintenance.asset import build_maintain_schedule, build_maintenance_asset
from orchestration.maintenance.maintenance import find_late, run_maintenance
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Cut, write_cut
from tests.spark.log_writer import LogWriter
from tests.spark.relations import insert, make_relation
from tests.walgate_command import run_walgate

T = make_relation("t", "k int4, v text")
NOW, MONTH = datetime.now(UTC), timedelta(days=31)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, and its lake with a cut an hour for ten days."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "walgate.toml").write_text(
        "[source]\ndsn = 'dbname=none'\n[lake]\nroot = 'lake'\n"
        "[redis]\nurl = 'redis://127.0.0.1:1/0'\n"
    )
    lake = Lake.of(load_settings(folder / "walgate.toml", {}))
    log = LogWriter(lake)
    log.begin_epoch(16)
    for hours in reversed(range(240)):
        log.add([insert(T, str(hours), "v")])
        at = NOW - timedelta(hours=hours)
        bound = Bound(1, Lsn(log.lsn))
        write_cut(lake, Cut(bound, at, at, "run", {}, {"public.t": bound}))
    log.commit()
    return folder


@pytest.fixture
def settings(written: Path, tmp_path: Path) -> Settings:
    shutil.copytree(written, tmp_path / "copy")
    return load_settings(tmp_path / "copy" / "walgate.toml", {})


def test_a_shell_maintains_the_lake_and_says_what_it_did(settings: Settings) -> None:
    folder = settings.state_folder.parent
    answer = run_walgate("maintain", "--json", folder=folder)
    assert answer.exit_code == 0, answer
    answered = json.loads(answer.stdout)
    assert answered["cuts"] + answered["dropped_cuts"] == 240
    assert 167 <= answered["cuts"] <= 169
    # The newest cut that is older than the retention is the one before the oldest that is kept.
    assert Lsn.parse(answered["oldest_lsn"]) - Lsn.parse(answered["log_floor"]) == 16
    assert (answered["log_held_by"], answered["problems"]) == ("[lake] retention", [])
    again = run_walgate("maintain", folder=folder)
    assert again.exit_code == 0
    assert "0 dropped" in again.stdout
    assert f"readable  from {answered['oldest_lsn']} on" in again.stdout
    status = json.loads(run_walgate("status", "--json", folder=folder).stdout)
    assert status["maintenance"]["oldest_lsn"] == answered["oldest_lsn"]
    assert status["maintenance"]["bytes"] > 0


def test_a_lake_without_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "walgate.toml").write_text("[source]\ndsn = 'dbname=none'\n[lake]\nroot = 'lake'\n")
    answer = run_walgate("maintain", folder=tmp_path)
    assert (answer.exit_code, len(answer.complaints)) == (4, 1)
    assert "there is no log" in answer.stderr


def test_dagster_plots_the_space_and_checks_it(settings: Settings) -> None:
    done = dg.materialize([build_maintenance_asset(settings)])
    assert done.success
    (event,) = done.asset_materializations_for_node("maintenance")
    answered: dict[str, Any] = {name: value.value for name, value in event.metadata.items()}
    assert answered["cuts"] + answered["dropped_cuts"] == 240
    assert 166 <= answered["oldest_cut_hours"] <= 168
    assert answered["bytes"] == (
        answered["bytes_of_tables"]
        + answered["bytes_of_log"]
        + answered["bytes_that_go_after_the_grace"]
    )
    (check,) = done.get_asset_check_evaluations()
    assert check.passed


def test_what_holds_the_log_beyond_the_oldest_cut_is_a_problem(settings: Settings) -> None:
    lake = Lake.of(settings)
    newest = Bound(1, Lsn(16 + 240 * 16))
    behind = {"public.t": Bound(1, Lsn(48))}
    at = datetime.now(UTC)
    write_cut(lake, Cut(newest, at, at, "run", {}, behind))
    report = run_maintenance(settings, tell=lambda _: None)
    assert report.floor is not None
    assert report.floor.lsn == 48
    (problem,) = report.problems
    assert "the log is kept from 0/30 on" in problem
    assert "held by public.t" in problem
    done = dg.materialize([build_maintenance_asset(settings)])
    (check,) = done.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert run_walgate("maintain", folder=settings.state_folder.parent).exit_code == 1


def test_the_schedule_maintains_when_the_last_maintenance_is_old(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = build_maintain_schedule(settings)

    def tick(instance: dg.DagsterInstance, after: timedelta) -> dg.ScheduleExecutionData:
        now = time.time() + after.total_seconds()
        monkeypatch.setattr("orchestration.runs.due_schedule.read_clock", lambda: now)
        moment = datetime.now(UTC)
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=moment)
        return schedule.evaluate_tick(context)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert tick(instance, timedelta()).run_requests
        run_maintenance(settings, tell=lambda _: None)
        early = tick(instance, timedelta(minutes=8))
        assert (early.skip_message or "").startswith("due in 1")
        assert tick(instance, timedelta(minutes=11)).run_requests
        # The clock was a year ahead when the last maintenance was recorded.
        assert tick(instance, timedelta(days=-365)).run_requests


def test_old_reports_and_verifications_go_and_no_state_changes(settings: Settings) -> None:
    root = settings.lake.root
    report = run_maintenance(settings, tell=lambda _: None)
    reports, verifications = MaintenanceLedger(root), VerificationLedger(root)

    def count_rows(ledger: str) -> int:
        return int(DeltaTable((root / ledger).uri).to_pyarrow_table().num_rows)

    old = {"epoch": 1, "at": NOW - MONTH, "result": "equal"}
    rows = [{**old, "table": "public.t", "lsn": lsn} for lsn in range(2, 20)]
    rows.append({**old, "table": "public.other", "lsn": 1, "to_ordinal": 5})
    append_numbered(root / VERIFICATIONS, rows, VERIFICATIONS_SCHEMA)
    other, part = TableName("public", "other"), OrdinalRange(5, None)
    verifications.record([Verified(other, 1, Lsn(9), "different", part=part)])
    for days in (30, 20, 8, 6):
        reports.record(replace(report, at=NOW - timedelta(days=days)))
    known = verifications.read_table_verifications()
    newest = run_maintenance(settings, tell=lambda _: None)
    assert verifications.read_table_verifications() == known
    assert reports.read_newest() == newest
    assert (count_rows(VERIFICATIONS), count_rows(MAINTENANCE)) == (3, 4)
    # The newest report stays, however old it is.
    reports.drop_old(NOW + MONTH)
    assert (reports.read_newest(), count_rows(MAINTENANCE)) == (newest, 1)


def test_a_maintenance_that_does_not_run_is_noticed(settings: Settings) -> None:
    began = NOW - timedelta(hours=1)
    assert "never ran" in str(find_late(None, settings, now=NOW, began=began))
    assert find_late(None, settings, now=NOW, began=NOW) is None
    report = run_maintenance(settings, tell=lambda _: None)
    assert find_late(report, settings, now=report.at, began=began) is None
    late = report.at + timedelta(hours=2)
    assert "last ran 2.0 h ago" in str(find_late(report, settings, now=late, began=began))
    assert MaintenanceLedger(settings.lake.root).read_newest() == report
