"""Job `fill_holes` and its sensor: they read rows with missing values again, key by key.

The position of the change that left the value missing identifies a row. The sensor does not ask
again for rows that the last run has read and no merge has brought yet. A row that changed again has
a new position, so it is read again.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from cdc_core.errors import SourceError, StagingError
from cdc_core.settings import Settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import reread_keys
from orchestration.backfill.missing_values import HoleReader
from orchestration.backfill.sensor import explain_missing_capture
from orchestration.runs.hosting import host_loop
from orchestration.runs.keys import AssetKeys
from orchestration.runs.pipeline_runs import PipelineRuns, tag_runs
from orchestration.runs.relaunch import (
    Decision,
    Launch,
    RunRecord,
    Skip,
    apply_decision,
    choose_pause,
    decide_on_active,
    default_status,
    find_time_left,
    has_ended_within,
    read_clock,
    read_runs,
)
from orchestration.runs.signs_of_life import Listener
from spark_jobs.target.missing_values import Hole, sign

JOB_NAME = "fill_holes"
SIGN_TAG = "walgate/holes"
_INTERVAL_S = 30
# Older tries do not count.
_RECENT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Try:
    """A run that was launched, and the signature of the rows that it was launched for."""

    run: RunRecord
    sign: str | None


def build_fill_holes_job(settings: Settings) -> dg.JobDefinition:
    """The job that reads rows with missing values again."""
    asset_keys = AssetKeys.of(settings)

    @dg.op(
        # An op must not have the name of a job.
        name="read_rows_again",
        description="Reads again the rows whose TOAST values the stream never sent.",
    )
    def fill_holes(context: dg.OpExecutionContext) -> None:
        filled: dict[TableName, tuple[int, int]] = {}

        def work(stop: threading.Event) -> None:
            reader = HoleReader(settings)
            for table, found in reader.read().fillable.items():
                count, keys = reader.count(table), sorted({hole.key for hole in found})
                if reread_keys(settings, table, keys, stop=stop):
                    filled[table] = count, len(keys)

        host_loop(context, work, most_s=None)
        for table, (count, keys) in filled.items():
            metadata = {"holes": count, "keys_read_again": keys}
            context.log_event(dg.AssetObservation(asset_keys.find_table(table), metadata=metadata))

    @dg.job(
        name=JOB_NAME,
        description="Reads rows with missing values again, by key, while the stream goes on.",
        executor_def=dg.in_process_executor,
        tags=tag_runs(settings),
    )
    def job() -> None:
        fill_holes()

    return job


def build_fill_holes_sensor(settings: Settings) -> dg.SensorDefinition:
    """The sensor that launches job `fill_holes` when rows can be read again."""
    reader = HoleReader(settings)  # A cache that lives as long as the code server.
    listener = Listener()

    @dg.sensor(
        name=JOB_NAME,
        job_name=JOB_NAME,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=default_status(
            runs=settings.dagster.autostart and settings.backfill.automatic
        ),
        description=(
            "Launches runs that read rows with missing values again: TOAST values that the stream"
            " never sent. Leaves out tables that still need a backfill. Waits longer after each"
            " run, and at least until the next merge."
        ),
    )
    def fill_holes(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        now = read_clock()
        tries = [
            Try(run, _read_sign(context.instance, run))
            for run in read_runs(
                context.instance,
                PipelineRuns.of(settings, context),
                JOB_NAME,
                since=now - _RECENT_S,
                listener=listener,
            )
        ]
        active = decide_on_active(
            [one.run for one in tries], doing="reads rows with missing values again", now=now
        )
        if active is not None:
            return apply_decision(context, active, lambda key: dg.RunRequest(run_key=key))
        try:
            holes = reader.read()
        except (SourceError, StagingError) as error:
            return dg.SensorResult(skip_reason=str(error))
        chosen = holes.fillable
        if not chosen:
            left = "; ".join(f"{table}: {reason}" for table, reason in holes.left.items())
            return dg.SensorResult(skip_reason=left or "no row has missing values")
        if (away := explain_missing_capture(settings)) is not None:
            return dg.SensorResult(skip_reason=f"{_count(chosen)}; {away}")
        signed = sign([hole for found in chosen.values() for hole in found])
        return apply_decision(
            context,
            decide(_count(chosen), signed, tries, now=now),
            lambda key: dg.RunRequest(run_key=key, tags={SIGN_TAG: signed}),
        )

    return fill_holes


def decide(what: str, signed: str, tries: Sequence[Try], *, now: float) -> Decision:
    """Launch a run for the rows of a signature, unless the last run has read exactly these.

    After recent tries, the next one waits. Order: `tries`, newest first.
    """
    if not tries:
        return Launch(f"{signed} first")
    last = tries[0]
    if last.run.status is dg.DagsterRunStatus.SUCCESS and last.sign == signed:
        return Skip(
            f"{what}: run {last.run.short_id} has read them; the next merge adds the values"
        )
    recent = [one for one in tries if has_ended_within(one.run, _RECENT_S, now=now)]
    pause = choose_pause(len(recent), last.run.retry)
    left = find_time_left(last.run.ended_at, pause, now=now)
    if recent and left > 0:
        return Skip(f"{what}: next try in {left:.0f} s, after run {last.run.short_id}")
    return Launch(f"{signed} after:{last.run.run_id}")


def _count(chosen: Mapping[TableName, list[Hole]]) -> str:
    counts = {table: len(holes) for table, holes in chosen.items()}
    return ", ".join(f"{table}: {n:,} rows with missing values" for table, n in counts.items())


def _read_sign(instance: dg.DagsterInstance, run: RunRecord) -> str | None:
    record = instance.get_run_by_id(run.run_id)
    return None if record is None else record.tags.get(SIGN_TAG)
