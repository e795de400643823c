"""Sensor `keep_replicating`: keeps exactly one replicate run alive.

It decides from the current state, so a missed tick costs only time. No change of the source passes
through it.
"""

import dagster as dg

from cdc_core.coordination.live import Figures
from cdc_core.errors import SourceError
from cdc_core.settings import Settings
from cdc_core.source.retention import Growth
from cdc_core.source.slot import Slot
from orchestration.capture import replicate
from orchestration.capture.checks import evaluate_staging
from orchestration.runs.pipeline_runs import PipelineRuns
from orchestration.runs.relaunch import (
    Decision,
    Skip,
    apply_decision,
    decide_on_active,
    decide_on_launch,
    default_status,
    find_time_left,
    read_clock,
    read_runs,
)
from orchestration.runs.signs_of_life import Listener
from orchestration.runs.source_view import SourceView, read_source_view

_INTERVAL_S = 5
_CHECK_S = 60.0


def build_keep_replicating(settings: Settings) -> dg.SensorDefinition:
    """The sensor that keeps exactly one replicate run alive."""
    growth = Growth()  # Lives as long as the code server; no decision uses it.
    listener = Listener()

    @dg.sensor(
        name="keep_replicating",
        job_name=replicate.JOB_NAME,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=default_status(runs=settings.dagster.autostart),
        description=(
            "Keeps exactly one replicate run alive: looks at the slot, then at the live figures,"
            " then at the runs; waits longer after each failure. Stop it to stop replication."
        ),
    )
    def keep_replicating(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        look = read_source_view(settings, growth)
        decision = _decide_to_replicate(settings, context, look, listener)
        result = apply_decision(context, decision, lambda key: dg.RunRequest(run_key=key))
        # The cursor is the time of the last evaluation of the checks. It only saves events.
        now = read_clock()
        if find_time_left(float(context.cursor or 0), _CHECK_S, now=now) > 0:
            return result
        checks = evaluate_staging(settings, look)
        return result._replace(asset_events=[*checks], cursor=f"{now:.0f}")

    return keep_replicating


def _decide_to_replicate(
    settings: Settings,
    context: dg.SensorEvaluationContext,
    look: SourceView | SourceError,
    listener: Listener,
) -> Decision:
    now = read_clock()
    own = PipelineRuns.of(settings, context)
    runs = read_runs(context.instance, own, replicate.JOB_NAME, listener=listener)
    if isinstance(look, SourceError):
        # A run that is under way connects to the source again by itself.
        return decide_on_active(runs, doing="waits for the source", now=now) or Skip(str(look))
    slot = look.slot
    active = decide_on_active(runs, doing=_describe_stream(slot, look.figures), now=now)
    if active is not None:
        return active
    if slot is None:
        name = settings.source.slot
        return Skip(
            f"slot {name} does not exist. Fix: before the first run `walgate init --create`, later"
            " `walgate recover`"
        )
    if slot.active_pid is not None:
        return Skip(
            f"process {slot.active_pid} of the source holds slot {slot.name}, and belongs to no"
            " run: it is another capture, or one that is ending"
        )
    return decide_on_launch(runs, now=now)


def _describe_stream(slot: Slot | None, figures: Figures | None) -> str:
    if slot is None or slot.active_pid is None:
        return "does not hold the slot yet"
    if figures is None:
        return f"streams, confirmed {slot.confirmed_flush}"
    return (
        f"streams, staged {figures.staged_lsn}, {figures.lag_bytes} bytes and"
        f" {figures.lag_seconds} s behind, {figures.rows_per_second:.0f} rows/s"
    )
