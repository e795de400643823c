"""One daemon over two pipelines and other people's code, whose runs outlast every limit of ours."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cdc_core.settings import Settings
from cdc_core.vocabulary import TableName
from orchestration.runs.keys import AssetKeys
from orchestration.runs.pipeline_runs import CLICKED_JOB, PIPELINE_TAG, PipelineRuns, name_pipeline
from orchestration.runs.relaunch import _UNSIGNED_S
from orchestration.stack.draining import drain_runs
from spark_jobs.lake.lake import Lake, open_table
from tests.deadline import wait_for
from tests.fix_dagster import ENVIRONMENT
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.orchestration import foreign_location
from tests.orchestration.shared_dagster import Location, SharedDagster
from tests.postgres_server import PostgresServer

DEADLINE_S = 300.0
DRAIN_DEADLINE_S = 150.0
Status = dg.DagsterRunStatus
NOTES = TableName("public", "notes")
FOREIGN_JOBS = sorted([*foreign_location.JOBS, CLICKED_JOB])


class Tenant:
    """One of the two pipelines, a code location of the shared Dagster."""

    def __init__(self, name: str, pipeline: Pipeline, first_id: int) -> None:
        self.name = name
        self.pipeline = pipeline
        file = pipeline.folder / "walgate.toml"
        # Runs roll over while the foreign ones last.
        text = file.read_text().replace("[capture]", "[capture]\nrun_minutes = 1")
        file.write_text(f'{text}[dagster]\npipeline = "{name}"\n')
        self.settings: Settings = pipeline.load_settings()
        self.own = PipelineRuns(name_pipeline(self.settings), location=name)
        self.ids: list[int] = []
        self._next_id = first_id

    @property
    def location(self) -> Location:
        environment = {"WALGATE_CONFIG": str(self.pipeline.folder / "walgate.toml")}
        return Location(self.name, "orchestration.definitions", ENVIRONMENT | environment)

    def insert(self) -> None:
        """Commit a row with a number that the other pipeline never has."""
        self.pipeline.database.execute("insert into notes values (%s)", [self._next_id])
        self.ids.append(self._next_id)
        self._next_id += 1

    def is_merged(self) -> bool:
        """Whether the Delta table holds the rows inserted here and no others."""
        delta = open_table(Lake.of(self.settings).locate(NOTES))
        return delta is not None and sorted(delta.to_pyarrow_table()["id"].to_pylist()) == self.ids

    def read_runs(self, dagster: SharedDagster, *jobs: str) -> list[dg.DagsterRun]:
        """Give its runs of some jobs, of all where none is named."""
        runs = dagster.instance.get_runs(dg.RunsFilter(tags=self.own.tags))
        return [run for run in runs if not jobs or run.job_name in jobs]


@pytest.fixture
def tenants(
    postgres_any: PostgresServer, make_pipeline: Callable[..., Pipeline]
) -> Iterator[list[Tenant]]:
    """Lend two pipelines over two databases with a table of the same name."""
    with ExitStack() as databases:
        made = []
        for number, name in enumerate(("walgate", "shop"), 1):
            database = databases.enter_context(lend_database(postgres_any))
            database.execute("create table notes (id int primary key)")
            made.append(Tenant(name, make_pipeline(database), 1000 * number))
        yield made


@pytest.fixture
def end_of_foreign(tmp_path: Path) -> Path:
    """Lend the path of the file that ends the foreign runs."""
    return tmp_path / "end-of-foreign"


@pytest.fixture
def shared(tenants: list[Tenant], end_of_foreign: Path, tmp_path: Path) -> Iterator[SharedDagster]:
    """Lend one Dagster over both pipelines and the foreign code."""
    variables = {foreign_location.END_VARIABLE: str(end_of_foreign)}
    foreign = Location(foreign_location.LOCATION, foreign_location.__name__, variables)
    folder = tmp_path / "dagster"
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="walgate-") as sockets:
        locations = [foreign, *(tenant.location for tenant in tenants)]
        dagster = SharedDagster(folder, Path(sockets), locations)
        try:
            yield dagster
        finally:
            dagster.end()


def await_state(
    dagster: SharedDagster, condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S
) -> None:
    """Wait for a state while every process runs; a failure shows the runs and the logs."""

    def look() -> Any:
        dagster.require_running()
        return condition()

    try:
        wait_for(look, deadline_s, what)
    except AssertionError as error:
        error.add_note(dagster.describe())
        raise


def find_location(run: dg.DagsterRun) -> str:
    assert run.remote_job_origin is not None
    name: str = run.remote_job_origin.repository_origin.code_location_origin.location_name
    return name


def list_foreign(dagster: SharedDagster) -> list[dg.RunRecord]:
    records = dagster.instance.get_run_records()
    name = foreign_location.LOCATION
    return [record for record in records if find_location(record.dagster_run) == name]


def list_foreign_statuses(dagster: SharedDagster) -> list[dg.DagsterRunStatus]:
    return [record.dagster_run.status for record in list_foreign(dagster)]


def await_change_in_tables(dagster: SharedDagster, tenants: list[Tenant]) -> None:
    """Commit a row in each source and wait until the Delta tables have it."""
    for tenant in tenants:
        tenant.insert()
    for tenant in tenants:
        await_state(dagster, tenant.is_merged, f"rows {tenant.ids} in {tenant.name}")


def await_ticks_past_the_limit(dagster: SharedDagster, tenants: list[Tenant]) -> None:
    """Wait until each sensor of ours has looked at foreign runs that are older than the limit."""
    starts = [record.start_time for record in list_foreign(dagster)]
    limit = max(start for start in starts if start is not None) + _UNSIGNED_S

    def have_ticked_twice(seen: dict[tuple[str, str], set[float]]) -> bool:
        for tenant in tenants:
            for sensor, moment in dagster.read_last_ticks(tenant.name).items():
                seen.setdefault((tenant.name, sensor), set()).update(
                    [moment] if moment > limit else []
                )
        return all(len(moments) >= 2 for moments in seen.values()) and len(seen) >= 4

    left_s = max(0.0, limit - time.time())
    seen: dict[tuple[str, str], set[float]] = {}
    await_state(
        dagster, lambda: have_ticked_twice(seen), "ticks past the limit", left_s + DEADLINE_S
    )


def require_own_reports(dagster: SharedDagster, tenant: Tenant) -> None:
    """Fail unless what is reported of its assets comes from its own runs, in its own location."""
    runs = {run.run_id for run in tenant.read_runs(dagster)}
    keys = AssetKeys.of(tenant.settings)
    for key in (keys.staging, keys.find_table(NOTES), keys.cuts):
        records = dagster.instance.fetch_materializations(key, limit=1000).records
        assert records, key
        assert {record.run_id for record in records} <= runs, key
    for run in tenant.read_runs(dagster):
        assert find_location(run) == tenant.name
        assert run.tags[PIPELINE_TAG] == tenant.name


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_two_pipelines_stream_under_one_daemon_beside_long_runs_of_others(
    tenants: list[Tenant], shared: SharedDagster, end_of_foreign: Path
) -> None:
    instance = shared.instance
    all_started = [Status.STARTED] * len(FOREIGN_JOBS)
    await_state(
        shared, lambda: list_foreign_statuses(shared) == all_started, "the foreign runs to start"
    )
    assert sorted(r.dagster_run.job_name for r in list_foreign(shared)) == FOREIGN_JOBS
    await_change_in_tables(shared, tenants)
    await_ticks_past_the_limit(shared, tenants)
    assert list_foreign_statuses(shared) == all_started, shared.describe()
    await_change_in_tables(shared, tenants)
    # The foreign runs end when their own work does.
    end_of_foreign.touch()
    await_state(
        shared,
        lambda: set(list_foreign_statuses(shared)) == {Status.SUCCESS},
        "the foreign runs to succeed",
    )
    for record in list_foreign(shared):
        assert not record.dagster_run.tags.keys() & {PIPELINE_TAG}
    shared.stop_daemon()
    for tenant in tenants:
        drain_runs(instance, tenant.own, most_s=DRAIN_DEADLINE_S, hurry=threading.Event())
    for tenant in tenants:
        statuses = [run.status for run in tenant.read_runs(shared, "replicate")]
        # The newest drained; those before it ended by themselves.
        assert statuses[0] in {Status.CANCELED, Status.SUCCESS}, shared.describe()
        assert statuses[1:], shared.describe()
        assert {*statuses[1:]} == {Status.SUCCESS}, shared.describe()
        assert {run.status for run in tenant.read_runs(shared)} <= {
            Status.SUCCESS,
            Status.CANCELED,
        }, shared.describe()
        require_own_reports(shared, tenant)
        assert tenant.pipeline.slot_facts()["pid"] is None
        tenant.pipeline.require_truth()
    shared.stop_servers()
    wait_for(shared.is_nothing_left, DEADLINE_S, "every process to end")
