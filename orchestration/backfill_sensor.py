"""The sensor that has queued tables read whole: smallest first, a few at a time, each by one run.

A decision only: which tables wait is read anew at each tick (backfill_queue.py), and whether a run
lives is asked as for every other run (relaunch.py). So a killed run is followed, and the next one
goes on with what the log does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from cdc_core.errors import SourceError, StagingError
from cdc_core.settings import Settings
from orchestration.backfill_queue import read_queue
from orchestration.known_tables import add_partitions, partition_key
from orchestration.look import Look, look_at_source
from orchestration.relaunch import (
    CLICKED_JOB,
    Reap,
    Seen,
    apply_decision,
    choose_pause,
    default_status,
    is_abandoned,
    read_clock,
    read_runs,
)

JOB_NAME = "backfill_tables"
# As Dagster names the op of the asset; no job may bear that name.
_OP_NAME = "backfill"
_INTERVAL_S = 10
# Each has connections and a process of its own.
_MOST_AT_ONCE = 2
# Tries that are older say nothing of the next.
_RECENT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Which tables have their turn (partition and run key), or why none has."""

    launched: list[tuple[str, str]] = field(default_factory=list)
    reason: str = ""


def build_backfill_queued_tables(settings: Settings) -> dg.SensorDefinition:
    """The sensor that launches a run of asset `backfill` for each table that waits for one."""

    @dg.sensor(
        name="backfill_queued_tables",
        job_name=JOB_NAME,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=default_status(
            runs=settings.dagster.autostart and settings.backfill.automatic
        ),
        description=(
            "Has each table that may lack rows read whole, smallest first, a few at a time: those"
            " that never were, and those that only a copy cures. Stop it to keep large reads off"
            " the source."
        ),
    )
    def backfill_queued_tables(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        try:
            queue = read_queue(settings)
        except (SourceError, StagingError) as error:
            return dg.SensorResult(skip_reason=str(error))
        # They come with the publication, and a person may want to launch one of them.
        add_partitions(context.instance, settings, [waiting.table for waiting in queue])
        runs = [run for run in read_runs(context.instance, JOB_NAME, CLICKED_JOB) if run.partition]
        now = read_clock()
        for run in runs:
            if run.is_active and is_abandoned(run, now):
                reap = Reap(run.run_id, f"the worker of run {run.short_id} is gone")
                return apply_decision(context, reap, lambda key: dg.RunRequest(run_key=key))
        if not queue:
            return dg.SensorResult(skip_reason="no table waits for a backfill")
        if (away := _find_capture_away(look_at_source(settings))) is not None:
            return dg.SensorResult(skip_reason=f"{len(queue)} tables wait; {away}")
        turn = choose_turn(
            [partition_key(waiting.table) for waiting in queue],
            [run for run in runs if run.is_active],
            lambda key: read_runs(context.instance, JOB_NAME, CLICKED_JOB, partition=key),
            now=now,
        )
        if not turn.launched:
            return dg.SensorResult(skip_reason=turn.reason)
        anew = {partition_key(waiting.table): waiting.is_anew for waiting in queue}
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    run_key=run_key,
                    partition_key=key,
                    run_config=_configure(is_anew=anew[key]),
                )
                for key, run_key in turn.launched
            ]
        )

    return backfill_queued_tables


def choose_turn(
    waiting: Sequence[str],
    active: Sequence[Seen],
    read_own: Callable[[str], Sequence[Seen]],
    *,
    now: float,
) -> Turn:
    """Give the first of the waiting partitions that may run their turn, up to a few in all.

    `active` are the runs under way, of whatever partition; `read_own` gives those of one, newest
    first. A table whose last runs were of no use waits longer after each.
    """
    busy = {run.partition for run in active}
    launched: list[tuple[str, str]] = []
    reasons = [f"run {run.short_id} reads {run.partition}" for run in active]
    for key in waiting:
        if len(busy) + len(launched) >= _MOST_AT_ONCE:
            reasons.append(f"{len(waiting)} tables wait, {_MOST_AT_ONCE} are read at a time")
            break
        if key in busy:
            continue
        own = read_own(key)
        tries = [run for run in own if run.ended_at and now - run.ended_at < _RECENT_S]
        pause = choose_pause(len(tries), own[0].retry) if tries else 0.0
        due = (own[0].ended_at or now) + pause if tries else now
        if now < due:
            reasons.append(
                f"{key} waits {due - now:.0f} s: run {own[0].short_id}, try {len(tries)},"
                f" ended {own[0].status.value}"
            )
            continue
        launched.append((key, f"{key} after:{own[0].run_id}" if own else f"{key} first"))
    return Turn(launched, "; ".join(reasons))


def _configure(*, is_anew: bool) -> dict[str, Any]:
    return {"ops": {_OP_NAME: {"config": {"dry_run": False, "anew": is_anew}}}}


def _find_capture_away(look: Look | SourceError) -> str | None:
    """Why nothing would take what a backfill reads; None where capture runs."""
    if isinstance(look, SourceError):
        return str(look)
    if look.slot is None or look.slot.active_pid is None:
        return "capture does not hold the slot now"
    return None
