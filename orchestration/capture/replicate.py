"""Job `replicate`: runs the capture loop for `run_minutes` and reports on the staging asset.

A run goes on past its minutes until it has staged the transaction that it is receiving.
"""

import threading
import time
from collections.abc import Mapping

import dagster as dg

from cdc_core.capture.loop import RunLimit
from cdc_core.settings import Settings
from orchestration.capture.capture import capture
from orchestration.capture.staging_reports import StagingReports
from orchestration.runs.hosting import host_loop
from orchestration.runs.keys import AssetKeys
from orchestration.runs.pipeline_runs import name_pool, tag_runs
from spark_jobs.lake.lake import Lake

JOB_NAME = "replicate"
POOL = "replicate"
_REPORT_S = 15.0


def build_replicate_job(settings: Settings) -> dg.JobDefinition:
    """The job that holds the slot while it runs."""

    @dg.op(
        description=(
            "Decodes the replication stream and stages whole transactions in commit order. Confirms"
            " the slot only after the staging commit. If cancelled, the run drains and loses"
            " nothing."
        ),
        config_schema={
            "run_minutes": dg.Field(
                float,
                default_value=settings.capture.run_minutes,
                description=(
                    "The run ends by itself after so many minutes, and the next run goes on. It"
                    " first receives a large transaction to its end. 0 never ends."
                ),
            )
        },
        out=dg.Out(dg.Nothing),
        pool=name_pool(settings, POOL),
    )
    def replicate_changes(context: dg.OpExecutionContext) -> None:
        minutes = _read_minutes(context.op_config)
        reports = StagingReports(context, Lake.of(settings), AssetKeys.of(settings).staging)
        most_s = minutes * 60 or None

        def replicate(stop: threading.Event) -> None:
            deadline = None if most_s is None else time.monotonic() + most_s
            with reports.every(_REPORT_S):
                capture(settings, RunLimit(stop, deadline=deadline), watch=reports.look)

        # Dagster sets no limit: one transaction may take longer to receive than `run_minutes`.
        host_loop(context, replicate, most_s=None)

    @dg.job(
        name=JOB_NAME,
        description=(
            "Streams the source's changes into staging/changes for `run_minutes`. Sensor"
            " keep_replicating keeps one such run alive; to stop replication, stop the sensor,"
            " then cancel the run."
        ),
        executor_def=dg.in_process_executor,
        tags=tag_runs(settings),
    )
    def replicate() -> None:
        replicate_changes()

    return replicate


def _read_minutes(config: Mapping[str, float]) -> float:
    minutes = config["run_minutes"]
    if minutes < 0:
        raise dg.Failure(
            f"run_minutes is {minutes}, expected 0 (never ends) or more", allow_retries=False
        )
    return minutes
