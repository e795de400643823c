"""A schedule that checks every minute whether a job is due, and starts one run of it at a time."""

from collections.abc import Callable

import dagster as dg

from cdc_core.settings import Settings
from orchestration.runs.pipeline_runs import PipelineRuns
from orchestration.runs.relaunch import (
    Abandon,
    Skip,
    decide_on_active,
    decide_on_launch,
    read_clock,
    read_runs,
    record_abandoned,
)
from orchestration.runs.signs_of_life import Listener


def build_due_schedule(
    settings: Settings,
    *,
    name: str,
    job_name: str,
    doing: str,
    description: str,
    explain_wait: Callable[[float], str | None],
) -> dg.ScheduleDefinition:
    """Make the schedule of a job. `doing` is a verb for skipped ticks, such as "maintains".

    `explain_wait` gets the present time and returns why the job must wait; None if it is due.
    """
    listener = Listener()  # Lives as long as the code server.
    on, off = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED

    @dg.schedule(
        name=name,
        cron_schedule="* * * * *",
        job_name=job_name,
        default_status=on if settings.dagster.autostart else off,
        description=description,
    )
    def start_when_due(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        now = read_clock()
        runs = read_runs(context.instance, PipelineRuns.of(settings), job_name, listener=listener)
        active = decide_on_active(runs, doing=doing, now=now)
        if isinstance(active, Abandon):
            return dg.SkipReason(record_abandoned(context.instance, active))
        if active is not None:
            return dg.SkipReason(active.reason)
        wait = explain_wait(now)
        if wait is not None:
            return dg.SkipReason(wait)
        decision = decide_on_launch(runs, now=now)
        if isinstance(decision, Skip):
            return dg.SkipReason(decision.reason)
        return dg.RunRequest(run_key=decision.run_key)

    return start_when_due
