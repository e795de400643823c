"""The rules by which a sensor launches a run, apart from where the facts come from.

A run's status proves nothing by itself. After `kill -9` of the worker together with its server, the
status stays STARTED; and a terminated run may still write. So a sensor checks the process that
signed the run and, for capture, the slot. It cannot check a process of another host: it gives up
such a run after a long time without a sign of life. Slot and locks admit one writer in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from cdc_core.backoff import Backoff
from cdc_core.errors import Retry
from orchestration.runs.hosting import (
    ALIVE_TAG,
    RETRY_TAG,
    WORKER_TAG,
    is_of_this_host,
    is_worker_gone,
)
from orchestration.runs.pipeline_runs import CLICKED_JOB, PipelineRuns
from orchestration.runs.signs_of_life import Listener

# Without SUSPENDED, which nothing writes yet.
ACTIVE = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
PARTITION_TAG = "dagster/partition"
_RECENT = 10
# A worker signs its run as soon as its op begins; importing takes up to a minute on a busy machine.
_UNSIGNED_S = 180.0
# The clocks of two hosts may differ by this much. A wrong clock has written a time that is farther
# ahead; a wait that is counted from there would end only when that time comes.
_AHEAD_S = 300.0
# The first failure is often a killed worker, which needs no pause. Each later try is a process that
# imports Dagster, and a row on Dagster's page.
_BACKOFF = Backoff(first_s=5.0, max_s=300.0, immediate=1)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as its record shows it. Units: Unix seconds.

    `is_silent` is True if a listener has seen no sign of life of the run for too long.
    """

    run_id: str
    status: dg.DagsterRunStatus
    worker: str | None
    retry: str | None
    started_at: float | None
    ended_at: float | None
    partition: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    is_silent: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the run is under way by its status."""
        return self.status in ACTIVE

    @property
    def short_id(self) -> str:
        """The id as Dagster's pages show it."""
        return self.run_id[:8]


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to do, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """A run on which no process works any more, to be recorded as failed."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A run to launch, once for its key."""

    run_key: str


Decision = Skip | Abandon | Launch


def read_runs(
    instance: dg.DagsterInstance,
    own: PipelineRuns,
    job: str,
    *,
    clicked: Callable[[dg.AssetKey], bool] | None = None,
    since: float | None = None,
    listener: Listener | None = None,
) -> list[RunRecord]:
    """The newest runs of a job of this pipeline, with every active one. Order: newest first.

    Includes runs in which a person materializes assets that `clicked` chooses. With `since`, in
    Unix seconds, includes all runs that were made after it. Never includes runs of other pipelines
    or of other people's code, which the instance may hold. Each read is a look of the `listener`,
    so a listener belongs to one job.
    """
    records = _read_records(instance, job, own.tags, since)
    records += [
        record
        for record in _read_records(instance, CLICKED_JOB, {}, since)
        if _is_clicked(record.dagster_run, clicked) and own.is_of_location(record.dagster_run)
    ]
    newest = sorted(records, key=lambda record: record.storage_id, reverse=True)
    signs = {
        record.dagster_run.run_id: sign
        for record in newest
        if (sign := record.dagster_run.tags.get(ALIVE_TAG)) and record.dagster_run.status in ACTIVE
    }
    silent = set() if listener is None else listener.find_silent(signs)
    seen: dict[str, RunRecord] = {}
    for record in newest:
        run = record.dagster_run
        seen.setdefault(
            run.run_id,
            RunRecord(
                run.run_id,
                run.status,
                run.tags.get(WORKER_TAG),
                run.tags.get(RETRY_TAG),
                record.start_time,
                record.end_time,
                run.tags.get(PARTITION_TAG),
                run.run_config,
                run.run_id in silent,
            ),
        )
    return list(seen.values())


def _is_clicked(run: dg.DagsterRun, clicked: Callable[[dg.AssetKey], bool] | None) -> bool:
    """Whether a run materializes a chosen asset; a run without a selection materializes all."""
    if clicked is None:
        return False
    return run.asset_selection is None or any(map(clicked, run.asset_selection))


def _read_records(
    instance: dg.DagsterInstance, job: str, tags: Mapping[str, str], since: float | None
) -> list[dg.RunRecord]:
    """The active, the newest and the recent records of a job; a record may occur repeatedly."""
    active = dg.RunsFilter(job_name=job, tags=tags, statuses=list(ACTIVE))
    newest = dg.RunsFilter(job_name=job, tags=tags)
    records = [
        *instance.get_run_records(active),
        *instance.get_run_records(newest, limit=_RECENT),
    ]
    if since is not None:
        moment = datetime.fromtimestamp(since, UTC)
        recent = dg.RunsFilter(job_name=job, tags=tags, created_after=moment)
        records += instance.get_run_records(recent)
    return records


def decide_on_active(runs: Sequence[RunRecord], *, doing: str, now: float) -> Skip | Abandon | None:
    """Decide to wait for an active run, or to give one up; None if no run is active.

    `doing` says what the run does, for a person.
    """
    under_way = [run for run in runs if run.is_active]
    if not under_way:
        return None
    # A run whose worker is gone may keep another run waiting in the queue.
    for run in under_way:
        if is_abandoned(run, now):
            return Abandon(run.run_id, f"the worker of run {run.short_id} is gone")
    active = under_way[0]
    if active.status is dg.DagsterRunStatus.CANCELING:
        return Skip(f"run {active.short_id} is draining")
    if active.worker is None:
        return Skip(f"run {active.short_id} is starting")
    return Skip(f"run {active.short_id} {doing}")


def decide_on_launch(runs: Sequence[RunRecord], *, now: float) -> Skip | Launch:
    """Launch the one run that follows the last, unless failures require a pause."""
    failures = _count_failures(runs)
    if failures:
        last = runs[0]
        left = find_time_left(last.ended_at, choose_pause(failures, last.retry), now=now)
        if left > 0:
            person = last.retry == Retry.AFTER_FIX.name
            then = "needs a person, see its page" if person else "failed"
            return Skip(
                f"run {last.short_id} {then}: failure {failures} in a row, next try in {left:.0f} s"
            )
    # The key names the last run: a daemon that dies between launch and record launches no second.
    return Launch(f"after:{runs[0].run_id}" if runs else "first")


def apply_decision(
    context: dg.SensorEvaluationContext,
    decision: Decision,
    request: Callable[[str], dg.RunRequest],
) -> dg.SensorResult:
    """Carry out a decision; return the sensor's result."""
    match decision:
        case Skip(reason):
            return dg.SensorResult(skip_reason=reason)
        case Abandon():
            return dg.SensorResult(skip_reason=record_abandoned(context.instance, decision))
        case Launch(run_key):
            return dg.SensorResult(run_requests=[request(run_key)])


def record_abandoned(instance: dg.DagsterInstance, reap: Abandon) -> str:
    """Record as failed a run on which no process works; return a line on that for a person."""
    run = instance.get_run_by_id(reap.run_id)
    if run is not None and not run.is_finished:
        instance.report_run_failed(run, reap.reason)
    return f"{reap.reason}; it is recorded as failed"


def default_status(*, runs: bool) -> dg.DefaultSensorStatus:
    """The default status of a sensor, by whether it runs from the start."""
    return dg.DefaultSensorStatus.RUNNING if runs else dg.DefaultSensorStatus.STOPPED


def read_clock() -> float:
    """The time now in Unix seconds, as run records have it."""
    return time.time()


def is_abandoned(run: RunRecord, now: float) -> bool:
    """Whether no process works on an active run any more."""
    if run.worker is not None:
        return is_worker_gone(run.worker) or (run.is_silent and not is_of_this_host(run.worker))
    if run.status is not dg.DagsterRunStatus.STARTED or run.started_at is None:
        return False
    return now - run.started_at > _UNSIGNED_S or is_dated_ahead(run.started_at, now=now)


def is_dated_ahead(moment: float, *, now: float) -> bool:
    """Whether a moment lies so far ahead that a wrong clock has written it."""
    return moment - now > _AHEAD_S


def find_time_left(since: float | None, seconds: float, *, now: float) -> float:
    """How much is left of a period that began at `since`; 0 or less if it is over. Units: seconds.

    It is over, too, if `since` is None or a wrong clock has written it.
    """
    if since is None or is_dated_ahead(since, now=now):
        return 0.0
    return since + seconds - now


def has_ended_within(run: RunRecord, seconds: float, *, now: float) -> bool:
    """Whether a run has ended in the last `seconds`; False if a wrong clock has dated its end."""
    return find_time_left(run.ended_at, seconds, now=now) > 0


def _count_failures(runs: Sequence[RunRecord]) -> int:
    """How many of the newest runs failed in a row."""
    for number, run in enumerate(runs):
        if run.status is not dg.DagsterRunStatus.FAILURE:
            return number
    return len(runs)


def choose_pause(failures: int, retry: str | None) -> float:
    """How long to wait after `failures` failures in a row. Units: seconds."""
    if retry == Retry.AFTER_FIX.name:
        return _BACKOFF.max_s
    return _BACKOFF.pause_after(failures)
