"""Stops the runs of a pipeline so that each drains, and records the runs that are left."""

from __future__ import annotations

import logging
import threading
import time

import dagster as dg

from orchestration.runs.hosting import WORKER_TAG, is_of_this_host, is_worker_gone
from orchestration.runs.pipeline_runs import CLICKED_JOB, PipelineRuns
from orchestration.runs.relaunch import ACTIVE

_logger = logging.getLogger("walgate.up")
_POLL_S = 0.25


def drain_runs(
    instance: dg.DagsterInstance, own: PipelineRuns, *, most_s: float, hurry: threading.Event
) -> None:
    """Ask every run of a pipeline that is in progress to stop, and wait for its end.

    The wait ends at `hurry` or after `most_s` seconds. Runs of others in the instance go on.
    The caller must have stopped the daemon; the code server that launched the runs must still run.
    """
    for run in _list_active(instance, own):
        _logger.info("run draining", extra={"fields": {"run": run.run_id, "job": run.job_name}})
        _ask_to_stop(instance, run)
    deadline = time.monotonic() + most_s
    while _list_active(instance, own) and time.monotonic() < deadline and not hurry.wait(_POLL_S):
        pass


def record_ended(instance: dg.DagsterInstance, own: PipelineRuns) -> None:
    """Record every unfinished run of a pipeline as canceled; their processes must be gone."""
    for run in _list_active(instance, own):
        instance.report_run_canceled(run, message="The stack that ran it was stopped.")


def record_left(instance: dg.DagsterInstance, own: PipelineRuns) -> None:
    """Record as failed the runs that a killed stack left in progress: no process works on them.

    The caller must hold the stack, and must have ended its processes. A queued run stays in the
    queue for the next stack. A run goes on if its process lives on this host, beside the stack. A
    run that another host signed is recorded as failed too.
    """
    for run in _list_active(instance, own):
        worker = run.tags.get(WORKER_TAG)
        lives = worker is not None and is_of_this_host(worker) and not is_worker_gone(worker)
        if run.status is not dg.DagsterRunStatus.QUEUED and not lives:
            _logger.info("run left over", extra={"fields": {"run": run.run_id}})
            instance.report_run_failed(run, "The stack that ran it was killed.")


def _list_active(instance: dg.DagsterInstance, own: PipelineRuns) -> list[dg.DagsterRun]:
    """The unfinished runs of the pipeline's jobs, and of assets that a person materializes."""
    active = list(ACTIVE)
    clicked = instance.get_runs(dg.RunsFilter(job_name=CLICKED_JOB, statuses=active))
    return [
        *instance.get_runs(dg.RunsFilter(tags=own.tags, statuses=active)),
        *(run for run in clicked if run.remote_job_origin and own.is_of_location(run)),
    ]


def _ask_to_stop(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    try:
        is_asked = instance.run_coordinator.cancel_run(run.run_id)
    except Exception:  # noqa: BLE001 - Dagster raises any error of its server.
        is_asked = False
    # If a run's server was killed, no server knows the run. Its worker finds the request in the
    # run's record.
    worker = run.tags.get(WORKER_TAG)
    if not is_asked and (worker is None or is_worker_gone(worker)):
        instance.report_run_canceled(run, message="Its worker is gone.")
