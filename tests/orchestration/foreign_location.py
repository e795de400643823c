"""Other people's code location: its jobs and its asset have our names, and its runs last long.

Each is launched once, by a sensor, and signs nothing. All end once the file $FOREIGN_END exists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from tests.deadline import wait_for

LOCATION = "dbt"
JOBS = ("replicate", "merge")
ASSET = dg.AssetKey(["tables", "public", "of_others"])
END_VARIABLE = "FOREIGN_END"
_DEADLINE_S = 1500.0
_RUNNING = dg.DefaultSensorStatus.RUNNING


def _await_end() -> None:
    wait_for(Path(os.environ[END_VARIABLE]).exists, _DEADLINE_S, "the end of the foreign runs")


@dg.op
def work_for_long() -> None:
    """Work until the end."""
    _await_end()


@dg.asset(key=ASSET)
def of_others() -> None:
    """Work until the end."""
    _await_end()


jobs = [dg.GraphDefinition(name, node_defs=[work_for_long]).to_job() for name in JOBS]


@dg.sensor(jobs=jobs, minimum_interval_seconds=5, default_status=_RUNNING)
def launch_jobs() -> Iterator[dg.RunRequest]:
    """Launch each job once."""
    for name in JOBS:
        yield dg.RunRequest(run_key=name, job_name=name)


@dg.sensor(asset_selection=[ASSET], minimum_interval_seconds=5, default_status=_RUNNING)
def launch_asset() -> dg.RunRequest:
    """Materialize the asset once."""
    return dg.RunRequest(run_key="once")


defs = dg.Definitions(
    assets=[of_others],
    jobs=jobs,
    sensors=[launch_jobs, launch_asset],
    executor=dg.in_process_executor,
)
