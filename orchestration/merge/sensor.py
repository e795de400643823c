"""Sensor `merge_staged_changes`: starts a merge run when the log has changes for it.

It decides from the current state, so a missed tick costs only time.
"""

import dagster as dg

from cdc_core.settings import Settings
from orchestration.merge import tables
from orchestration.runs.keys import AssetKeys
from orchestration.runs.pipeline_runs import PipelineRuns
from orchestration.runs.relaunch import (
    Decision,
    Skip,
    apply_decision,
    decide_on_active,
    decide_on_launch,
    default_status,
    read_clock,
    read_runs,
)
from orchestration.runs.signs_of_life import Listener
from spark_jobs.lake.lake import Lake
from spark_jobs.log.backlog import Backlog, read_backlog

_INTERVAL_S = 5


def build_merge_staged_changes(settings: Settings) -> dg.SensorDefinition:
    """The sensor that starts a merge run when changes of tables are staged above the cut."""
    listener = Listener()

    @dg.sensor(
        name="merge_staged_changes",
        job_name=tables.JOB_NAME,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=default_status(runs=settings.dagster.autostart),
        description=(
            "Starts a merge run when the log holds changes above the newest cut; the run goes on"
            " while more arrive."
        ),
    )
    def merge_staged_changes(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        config = {"linger_seconds": settings.merge.linger_seconds}
        run_config = {"ops": {tables.OP_NAME: {"config": config}}}
        return apply_decision(
            context,
            _decide_to_merge(settings, context, listener),
            lambda key: dg.RunRequest(run_key=key, run_config=run_config),
        )

    return merge_staged_changes


def _decide_to_merge(
    settings: Settings, context: dg.SensorEvaluationContext, listener: Listener
) -> Decision:
    now = read_clock()
    runs = read_runs(
        context.instance,
        PipelineRuns.of(settings, context),
        tables.JOB_NAME,
        clicked=AssetKeys.of(settings).is_merged,
        listener=listener,
    )
    backlog = read_backlog(Lake.of(settings))
    active = decide_on_active(runs, doing=f"merges; {_describe_backlog(backlog)}", now=now)
    if active is not None:
        return active
    if not backlog.entries:
        return Skip(_describe_backlog(backlog))
    return decide_on_launch(runs, now=now)


def _describe_backlog(backlog: Backlog) -> str:
    if backlog.staged is None:
        return "nothing was staged yet"
    through = "nothing" if backlog.cut is None else f"through {backlog.cut.lsn}"
    if not backlog.entries:
        return f"no changes above the cut: merged {through}, staged {backlog.staged.lsn}"
    return f"{backlog.entries} changes to merge: merged {through}, staged {backlog.staged.lsn}"
