"""Several pipelines and other people's code in one Dagster: each sees to its own runs alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from cdc_core.settings import Settings, load_settings
from orchestration.assembly import build_definitions
from orchestration.backfill import missing_value_job
from orchestration.backfill import sensor as backfill_sensor
from orchestration.capture import sensor as capture_sensor
from orchestration.merge import sensor as merge_sensor
from orchestration.runs.hosting import WORKER_TAG, format_worker
from orchestration.runs.keys import AssetKeys
from orchestration.runs.known_tables import partition_tables
from orchestration.runs.pipeline_runs import CLICKED_JOB, PipelineRuns, name_pipeline
from orchestration.stack.draining import drain_runs, record_ended
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.postgres_server import Database, PostgresServer

Status = dg.DagsterRunStatus
# A run that never signed is given up after three minutes; the others run for ten.
TEN_MINUTES_S = 600.0


class Tenant:
    """A pipeline in an instance that it shares."""

    def __init__(
        self, settings: Settings, instance: dg.DagsterInstance, database: Database
    ) -> None:
        self.settings = settings
        self.database = database
        self.instance = instance
        self.definitions = build_definitions(settings)

    def tick(self, sensor: str) -> dg.SensorResult:
        origin = make_origin(self.settings.dagster.pipeline)
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=None,
            repository_name="__repository__",
            instance=self.instance,
            code_location_origin=origin,
        )
        result = self.definitions.resolve_sensor_def(sensor)(context)
        assert isinstance(result, dg.SensorResult)
        return result

    def read_assets(self) -> set[dg.AssetKey]:
        return set(self.definitions.resolve_asset_graph().get_all_asset_keys())

    def add_run(self, job: str, **tags: str) -> dg.DagsterRun:
        """Add a run of one of its jobs that has begun."""
        definition = self.definitions.resolve_job_def(job)
        return self.instance.create_run_for_job(
            definition, status=Status.STARTED, tags={**definition.tags, **tags}
        )


def make_origin(location: str) -> InProcessCodeLocationOrigin:
    return InProcessCodeLocationOrigin(
        LoadableTargetOrigin(module_name=location), location_name=location
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Lend an instance of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def tenants(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    postgres_any: PostgresServer,
    instance: dg.DagsterInstance,
) -> Iterator[list[Tenant]]:
    """Lend two pipelines, one named, over two databases with tables of the same name."""
    with lend_database(postgres_any) as other:
        made = []
        for name, database in (("walgate", database18), ("shop", other)):
            database.execute("create table notes (id int primary key)")
            pipeline = make_pipeline(database)
            settings = load_settings(
                pipeline.folder / "walgate.toml", {"WALGATE_DAGSTER__PIPELINE": name}
            )
            made.append(Tenant(settings, instance, database))
        yield made


def add_clicked_run(
    instance: dg.DagsterInstance, location: str, *assets: dg.AssetKey
) -> dg.DagsterRun:
    """Add a run in which a person materializes assets of a code location; it has begun."""
    repository = RemoteRepositoryOrigin(make_origin(location), "__repository__")
    made = [
        dg.AssetsDefinition.from_op(make_op(f"make{n}"), keys_by_output_name={"result": key})
        for n, key in enumerate(assets)
    ]
    return instance.create_run_for_job(
        dg.Definitions(assets=made).resolve_implicit_global_asset_job_def(),
        status=Status.STARTED,
        asset_selection=frozenset(assets),
        remote_job_origin=RemoteJobOrigin(repository, CLICKED_JOB),
        job_code_origin=JobPythonOrigin(
            CLICKED_JOB,
            RepositoryPythonOrigin("python", ModuleCodePointer("m", "f"), None, None, {}),
        ),
    )


def make_op(name: str) -> dg.OpDefinition:
    @dg.op(name=name)
    def work() -> None:
        """Nothing."""

    return work


def begin(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun:
    """Record that a run has started now."""
    event = dg.DagsterEvent(dg.DagsterEventType.PIPELINE_START.value, run.job_name)
    instance.report_dagster_event(event, run.run_id)
    return run


def read_status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


@pytest.fixture
def foreign(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Lend runs of people who know nothing of us, whose jobs and assets have our names."""
    runs = [
        add_clicked_run(instance, "dbt", dg.AssetKey(["sales"])),
        add_clicked_run(instance, "dbt", dg.AssetKey(["tables", "public", "notes"])),
        add_clicked_run(instance, "dbt", dg.AssetKey(["backfill"])),
    ]
    for name in ("merge", "replicate", "backfill_tables", "fill_holes"):
        job = dg.GraphDefinition(name, node_defs=[make_op("work")]).to_job()
        runs.append(instance.create_run_for_job(job, status=Status.STARTED))
    return [begin(instance, run) for run in runs]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ten minutes have gone by for the sensors."""
    for module in (capture_sensor, merge_sensor, backfill_sensor, missing_value_job):
        monkeypatch.setattr(module, "read_clock", lambda: time.time() + TEN_MINUTES_S)


SENSORS = ("keep_replicating", "merge_staged_changes", "backfill_queued_tables", "fill_holes")


@pytest.mark.usefixtures("later")
def test_runs_of_others_hold_nothing_up_and_are_never_ended(
    tenants: list[Tenant], foreign: list[dg.DagsterRun], instance: dg.DagsterInstance
) -> None:
    for tenant in tenants:
        for sensor in SENSORS:
            tenant.tick(sensor)
        (request,) = tenant.tick("keep_replicating").run_requests or ()
        assert request.run_key == "first"
    for tenant in tenants:
        own = PipelineRuns(
            name_pipeline(tenant.settings), location=tenant.settings.dagster.pipeline
        )
        drain_runs(instance, own, most_s=0, hurry=threading.Event())
        record_ended(instance, own)
    assert {read_status(instance, run) for run in foreign} == {Status.STARTED}


def test_each_pipeline_sees_to_its_own_runs_alone(
    tenants: list[Tenant], instance: dg.DagsterInstance
) -> None:
    one, other = tenants
    gone = f"{format_worker(os.getpid())}1"
    killed = one.add_run("replicate", **{WORKER_TAG: gone})
    (request,) = other.tick("keep_replicating").run_requests or ()
    assert request.run_key == "first"
    assert read_status(instance, killed) is Status.STARTED
    assert not one.tick("keep_replicating").run_requests
    assert read_status(instance, killed) is Status.FAILURE
    # A run that a person started from a pipeline's page is its own, by its assets.
    alive = format_worker(os.getpid())
    clicked = add_clicked_run(instance, "shop", AssetKeys(("shop",)).cuts)
    instance.add_run_tags(clicked.run_id, {WORKER_TAG: alive})
    reasons = [str(tenant.tick("merge_staged_changes").skip_reason) for tenant in tenants]
    assert clicked.run_id[:8] not in reasons[0]
    assert clicked.run_id[:8] in reasons[1]


def test_nothing_of_two_pipelines_has_the_same_name(tenants: list[Tenant]) -> None:
    one, other = tenants
    assert not one.read_assets() & other.read_assets()
    assert dg.AssetKey(["tables", "public", "notes"]) in one.read_assets()
    assert dg.AssetKey(["shop", "tables", "public", "notes"]) in other.read_assets()
    pools = [
        {
            node.pool
            for job in ("replicate", "merge")
            for node in tenant.definitions.resolve_job_def(job).all_node_defs
            if isinstance(node, dg.OpDefinition) and node.pool is not None
        }
        for tenant in tenants
    ]
    assert pools == [{"walgate_replicate", "walgate_merge"}, {"shop_replicate", "shop_merge"}]
    assert partition_tables(one.settings).name != partition_tables(other.settings).name
    assert [tenant.settings.redis.prefix for tenant in tenants] == ["walgate", "shop"]


def test_both_stream_and_report_on_assets_of_their_own(
    tenants: list[Tenant], instance: dg.DagsterInstance, foreign: list[dg.DagsterRun]
) -> None:
    for number, tenant in enumerate(tenants, 1):
        tenant.database.execute(f"insert into notes select generate_series(1, {number})")
        result = tenant.definitions.resolve_job_def("replicate").execute_in_process(
            instance=instance,
            run_config={"ops": {"replicate_changes": {"config": {"run_minutes": 0.05}}}},
        )
        assert result.success
    for number, tenant in enumerate(tenants, 1):
        key = AssetKeys.of(tenant.settings).staging
        reports = instance.fetch_materializations(key, limit=100).records
        rows = [
            int(str(record.asset_materialization.metadata["rows"].value))
            for record in reports
            if record.asset_materialization is not None
        ]
        assert sum(rows) == number
    assert {read_status(instance, run) for run in foreign} == {Status.STARTED}
