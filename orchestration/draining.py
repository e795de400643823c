"""Stopping the runs of an instance so that each drains."""

from __future__ import annotations

import logging
import threading
import time

import dagster as dg

from orchestration.hosting import WORKER_TAG, is_worker_gone
from orchestration.relaunch import ACTIVE

_logger = logging.getLogger("walgate.up")
_POLL_S = 0.25


def drain_runs(instance: dg.DagsterInstance, *, most_s: float, hurry: threading.Event) -> None:
    """Ask every run in progress to stop and wait for its end, until `hurry` or the time is over.

    The code server that launched them still runs, no daemon does.
    """
    for run in _list_active(instance):
        _logger.info("run draining", extra={"fields": {"run": run.run_id, "job": run.job_name}})
        _ask_to_stop(instance, run)
    deadline = time.monotonic() + most_s
    while _list_active(instance) and time.monotonic() < deadline and not hurry.wait(_POLL_S):
        pass


def record_ended(instance: dg.DagsterInstance) -> None:
    """Record as canceled every run in progress; none of their processes lives any more."""
    for run in _list_active(instance):
        instance.report_run_canceled(run, message="The stack of its process was stopped.")


def _list_active(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    return list(instance.get_runs(dg.RunsFilter(statuses=list(ACTIVE))))


def _ask_to_stop(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    try:
        is_asked = instance.run_coordinator.cancel_run(run.run_id)
    except Exception:  # noqa: BLE001 - Dagster raises whatever its server met with.
        is_asked = False
    # No server knows a run whose own was killed; its worker finds the request in its record.
    worker = run.tags.get(WORKER_TAG)
    if not is_asked and (worker is None or is_worker_gone(worker)):
        instance.report_run_canceled(run, message="Its worker is gone.")
