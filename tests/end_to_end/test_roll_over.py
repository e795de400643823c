"""Replicate runs that follow one another under load: nothing lost, nothing twice, a gap of seconds.

The whole runs in `make soak`, where it states the gap.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.deadline import wait_for
from tests.fix_dagster import RunningDagster
from tests.fix_pipeline import Pipeline
from tests.load import prepare, running_load
from tests.truth import require_whole_commits

RUNS = 5
DEADLINE_S = 900.0


def measure_gaps(root: Path, runs: int) -> list[float]:
    """Give the seconds in which nothing was staged: the longest between commits, one a roll-over.

    Under load a batch is staged about each second.
    """
    commits = DeltaTable(root / "staging" / "changes").history()
    times = sorted(commit["timestamp"] / 1000 for commit in commits)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    return sorted(pauses)[-(runs - 1) :]


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_five_runs_in_a_row_stage_every_transaction_once(
    pipeline: Pipeline,
    start_dagster: Callable[..., RunningDagster],
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripts = prepare(pipeline.database, tmp_path)
    with running_load(pipeline.database, scripts, seed=seed):
        dagster = start_dagster(
            WALGATE_CAPTURE__RUN_MINUTES="0.25", WALGATE_CAPTURE__BATCH_SECONDS="1s"
        )
        dagster.wait_until_ready()

        def count_ended() -> bool:
            runs = dagster.read_runs("replicate")
            assert not {run["status"] for run in runs} & {"FAILURE", "CANCELED"}, runs
            ended: int = sum(run["status"] == "SUCCESS" for run in runs)
            return ended >= RUNS

        wait_for(count_ended, DEADLINE_S, f"{RUNS} runs to end by themselves")
        assert dagster.finish() == 0
    gaps = measure_gaps(pipeline.root, RUNS)
    with capsys.disabled():
        print(  # noqa: T201 - the figure is to be stated.
            f"\nnothing was staged at a roll-over for {min(gaps):.1f} s,"
            f" median {statistics.median(gaps):.1f} s, at most {max(gaps):.1f} s"
        )
    pipeline.catch_up()
    assert pipeline.require_truth() > 1000
    assert require_whole_commits(pipeline.root) > RUNS
