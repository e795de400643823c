"""The sensor that launches backfills of queued tables: smallest first, a few runs at a time.

It only decides. Each tick reads again which tables wait (queue.py), and checks whether
runs live, as for every other run (relaunch.py). So another run follows a killed one, and reads what
the log does not have yet.
"""

from __future__ import annotations

from contextlib import closing

import dagster as dg

from cdc_core.errors import SourceError, StagingError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_for_quick_query
from cdc_core.source.slot import read_slot
from orchestration.backfill.queue import QueueReader
from orchestration.backfill.schedule import (
    OP_NAME,
    RECENT_S,
    Group,
    find_partitions_of,
    plan_launches,
)
from orchestration.runs.keys import AssetKeys
from orchestration.runs.known_tables import add_partitions
from orchestration.runs.pipeline_runs import PipelineRuns
from orchestration.runs.relaunch import (
    Abandon,
    apply_decision,
    default_status,
    is_abandoned,
    read_clock,
    read_runs,
)
from orchestration.runs.signs_of_life import Listener

JOB_NAME = "backfill_tables"
# Shown in the list of runs.
_TABLES_TAG = "walgate/tables"
_TAG_LENGTH = 200
_INTERVAL_S = 10


def build_backfill_queued_tables(settings: Settings) -> dg.SensorDefinition:
    """The sensor that launches runs of asset `backfill` for the tables that wait for one."""
    reader = QueueReader(settings)  # A cache that lives as long as the code server.
    listener = Listener()

    @dg.sensor(
        name="backfill_queued_tables",
        job_name=JOB_NAME,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=default_status(
            runs=settings.dagster.autostart and settings.backfill.automatic
        ),
        description=(
            "Launches a backfill of each table that may lack rows, smallest first: of tables that"
            " no backfill has read, and of halted tables that a backfill cures. Small tables share"
            " a run. At most two runs read at a time. Stop this sensor to keep large reads off the"
            " source."
        ),
    )
    def backfill_queued_tables(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        try:
            queue = reader.read()
        except (SourceError, StagingError) as error:
            return dg.SensorResult(skip_reason=str(error))
        # A table may be new in the publication, and a person may want to launch its backfill.
        add_partitions(context.instance, settings, [waiting.table for waiting in queue])
        now = read_clock()
        seen = read_runs(
            context.instance,
            PipelineRuns.of(settings, context),
            JOB_NAME,
            clicked=lambda key: key == AssetKeys.of(settings).backfill,
            since=now - RECENT_S,
            listener=listener,
        )
        runs = [run for run in seen if find_partitions_of(run)]
        for run in runs:
            if run.is_active and is_abandoned(run, now):
                reap = Abandon(run.run_id, f"the worker of run {run.short_id} is gone")
                return apply_decision(context, reap, lambda key: dg.RunRequest(run_key=key))
        if not queue:
            return dg.SensorResult(skip_reason="no table waits for a backfill")
        turn = plan_launches(queue, runs, now=now)
        if not turn.groups:
            return dg.SensorResult(skip_reason=turn.reason)
        if (away := explain_missing_capture(settings)) is not None:
            waiting = f"{len(queue)} table{'s wait' if len(queue) > 1 else ' waits'}"
            return dg.SensorResult(skip_reason=f"{waiting}; {away}")
        return dg.SensorResult(run_requests=[_request(group) for group in turn.groups])

    return backfill_queued_tables


def _request(group: Group) -> dg.RunRequest:
    """The request of a run that reads one partition, or several tables by their names."""
    config = {"dry_run": False, "anew": group.is_anew}
    if len(group.partitions) == 1:
        return dg.RunRequest(
            run_key=group.run_key,
            partition_key=group.partitions[0],
            run_config={"ops": {OP_NAME: {"config": config}}},
        )
    listed = ", ".join(group.partitions)
    count = f"{len(group.partitions)} tables"
    return dg.RunRequest(
        run_key=group.run_key,
        run_config={"ops": {OP_NAME: {"config": config | {"tables": group.partitions}}}},
        tags={_TABLES_TAG: listed if len(listed) <= _TAG_LENGTH else count},
    )


def explain_missing_capture(settings: Settings) -> str | None:
    """Why no capture would take what a backfill reads; None if a capture holds the slot."""
    source = settings.source
    try:
        with closing(open_for_quick_query(source, application_name="walgate look")) as connection:
            slot = read_slot(connection, source.slot)
    except SourceError as error:
        return str(error)
    if slot is None or slot.active_pid is None:
        return "capture does not hold the slot now"
    return None
