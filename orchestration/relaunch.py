"""When a sensor launches a run: the rules, apart from where the facts come from.

A run's status proves nothing by itself: after `kill -9` of the worker and its server together it is
STARTED for ever, and a terminated one may still be writing. So the process that signed the run is
asked, and, for capture, the slot. A process of another host cannot be asked: its run is given up
after a long time without a sign of life. Whatever is decided here, slot and locks admit one writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from cdc_core.errors import Retry
from orchestration.hosting import (
    ALIVE_TAG,
    RETRY_TAG,
    WORKER_TAG,
    is_of_this_host,
    is_worker_gone,
)
from orchestration.own_runs import CLICKED_JOB, Own
from orchestration.signs_of_life import Listener

# SUSPENDED is written by nothing yet.
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
# By so much the clocks of two hosts may differ. What is dated farther ahead was dated by a clock
# that was wrong for a time; a wait that is counted from there would end when that time comes.
_AHEAD_S = 300.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One run as its record tells it. Units: Unix seconds.

    `is_silent` is a run that has shown no sign of life for long, as far as that is listened for.
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
        """Whether Dagster takes it to be under way."""
        return self.status in ACTIVE

    @property
    def short_id(self) -> str:
        """As Dagster's pages show it."""
        return self.run_id[:8]


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to do, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reap:
    """A run that nobody works on any more, to be recorded as failed."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A run to launch, once for its key."""

    run_key: str


Decision = Skip | Reap | Launch


def read_runs(
    instance: dg.DagsterInstance,
    own: Own,
    job: str,
    *,
    clicked: Callable[[dg.AssetKey], bool] | None = None,
    since: float | None = None,
    listener: Listener | None = None,
) -> list[Seen]:
    """The newest runs of a job of this pipeline, newest first, every active one among them.

    Runs in which a person materializes assets that `clicked` chooses are among them too. With
    `since`, in Unix seconds, also all that were made after it. The instance may hold runs of other
    pipelines and of other people's code: none of those is ever given. Each read is a look of the
    `listener`, which therefore belongs to one job.
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
    seen: dict[str, Seen] = {}
    for record in newest:
        run = record.dagster_run
        seen.setdefault(
            run.run_id,
            Seen(
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
    """The active, the newest and the recent records of a job; a record may be in it twice."""
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


def decide_on_active(runs: Sequence[Seen], *, doing: str, now: float) -> Skip | Reap | None:
    """What an active run means: wait for it, or give it up; None where there is none.

    `doing` says what the run does, for a person.
    """
    under_way = [run for run in runs if run.is_active]
    if not under_way:
        return None
    # One that is gone may be what another waits for in the queue.
    for run in under_way:
        if is_abandoned(run, now):
            return Reap(run.run_id, f"the worker of run {run.short_id} is gone")
    active = under_way[0]
    if active.status is dg.DagsterRunStatus.CANCELING:
        return Skip(f"run {active.short_id} is draining")
    if active.worker is None:
        return Skip(f"run {active.short_id} is starting")
    return Skip(f"run {active.short_id} {doing}")


def decide_on_launch(runs: Sequence[Seen], *, now: float) -> Skip | Launch:
    """Launch the one run that follows the last, unless failures ask for a pause."""
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
    # One follower for each run: a daemon that dies between launch and record launches no second.
    return Launch(f"after:{runs[0].run_id}" if runs else "first")


def apply_decision(
    context: dg.SensorEvaluationContext,
    decision: Decision,
    request: Callable[[str], dg.RunRequest],
) -> dg.SensorResult:
    """Carry a decision out, through the sensor's result."""
    match decision:
        case Skip(reason):
            return dg.SensorResult(skip_reason=reason)
        case Reap():
            return dg.SensorResult(skip_reason=record_abandoned(context.instance, decision))
        case Launch(run_key):
            return dg.SensorResult(run_requests=[request(run_key)])


def record_abandoned(instance: dg.DagsterInstance, reap: Reap) -> str:
    """Record a run that nobody works on as failed; give what was done, for a person."""
    run = instance.get_run_by_id(reap.run_id)
    if run is not None and not run.is_finished:
        instance.report_run_failed(run, reap.reason)
    return f"{reap.reason}; it is recorded as failed"


def default_status(*, runs: bool) -> dg.DefaultSensorStatus:
    """Whether a sensor runs from the start."""
    return dg.DefaultSensorStatus.RUNNING if runs else dg.DefaultSensorStatus.STOPPED


def read_clock() -> float:
    """Now, in Unix seconds, as run records count."""
    return time.time()


def is_abandoned(run: Seen, now: float) -> bool:
    """Whether nobody works on an active run any more."""
    if run.worker is not None:
        return is_worker_gone(run.worker) or (run.is_silent and not is_of_this_host(run.worker))
    if run.status is not dg.DagsterRunStatus.STARTED or run.started_at is None:
        return False
    return now - run.started_at > _UNSIGNED_S or is_dated_ahead(run.started_at, now=now)


def is_dated_ahead(moment: float, *, now: float) -> bool:
    """Whether a moment lies so far ahead that the clock which dated it was wrong."""
    return moment - now > _AHEAD_S


def find_time_left(since: float | None, seconds: float, *, now: float) -> float:
    """How much is left of a time that began at a moment; 0 or less where it is over.

    It is over, too, where the moment is not known or was dated by a clock that was wrong.
    """
    if since is None or is_dated_ahead(since, now=now):
        return 0.0
    return since + seconds - now


def has_ended_within(run: Seen, seconds: float, *, now: float) -> bool:
    """Whether a run has ended in the last so many seconds, as far as its date can be believed."""
    return find_time_left(run.ended_at, seconds, now=now) > 0


def _count_failures(runs: Sequence[Seen]) -> int:
    """How many of the newest runs failed in a row."""
    for number, run in enumerate(runs):
        if run.status is not dg.DagsterRunStatus.FAILURE:
            return number
    return len(runs)


def choose_pause(failures: int, retry: str | None) -> float:
    """How long to wait after so many failures in a row. Units: seconds."""
    if retry == Retry.AFTER_FIX.name:
        return _LONGEST_PAUSE_S
    if failures == 1:
        return 0.0
    pause: float = _FIRST_PAUSE_S * 2.0 ** (failures - 2)
    return min(pause, _LONGEST_PAUSE_S)
