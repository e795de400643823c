"""What a person sees of a backfill of a large table, on Dagster's page and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from cdc_core.vocabulary import TableName
from orchestration.runs.known_tables import partition_key
from tests.deadline import wait_for
from tests.fix_browser import SCREENSHOTS_VARIABLE
from tests.fix_dagster import REPOSITORY, RunningDagster
from tests.fix_pipeline import Pipeline
from tests.fix_redis import RedisServer
from tests.postgres_server import Database
from tests.walgate_command import walgate_command, walgate_environment

ROWS = 10_000_000
RATE = 150_000
DEADLINE_S = 600.0
TABLE = TableName("public", "large")
LAUNCH = """
    mutation ($params: ExecutionParams!) {
      launchPipelineExecution(executionParams: $params) {
        __typename
        ... on LaunchRunSuccess { run { runId } }
        ... on PythonError { message }
      }
    }
"""
OBSERVATIONS = """
    query {
      assetOrError(assetKey: {path: ["backfill"]}) {
        ... on Asset { assetObservations(limit: 20) { description } }
      }
    }
"""
PROGRESS = re.compile(
    r"public\.large: running, ([\d,]+) rows \((\d+) %\) in \d+ chunks at [\d,]+ rows/s"
)


@pytest.mark.soak
@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_progress_of_a_large_backfill_is_seen(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    start_dagster_on: Callable[..., RunningDagster],
    redis_process: RedisServer,
    page: Page,
    screenshot: Callable[[str], None],
    tmp_path: Path,
) -> None:
    database18.execute("create table large (id bigint primary key, a text, b int, c timestamptz)")
    database18.execute(
        "insert into large select i, md5(i::text), i % 100, now()"
        f" from generate_series(1, {ROWS}) i"
    )
    database18.execute("analyze large")
    pipeline = make_pipeline(database18, redis=redis_process.url)
    rate = {"WALGATE_BACKFILL__ROWS_PER_SECOND": str(RATE)}
    dagster = start_dagster_on(pipeline, **rate)
    dagster.wait_until_ready()
    dagster.wait_until_streaming()
    run = launch(dagster, dry_run=False)
    wait_for(lambda: len(read_progress(dagster)) >= 2, DEADLINE_S, "two observations")
    page.goto(f"{dagster.url}/runs/{run}")
    page.get_by_text("rows_estimated").first.wait_for()
    screenshot("backfill-run")
    page.goto(f"{dagster.url}/assets/backfill?view=events")
    page.get_by_text(PROGRESS).first.wait_for()
    screenshot("backfill-asset")
    rows = [rows for rows, _ in read_progress(dagster)]
    assert 0 < rows[0] < rows[-1] < ROWS
    wait_for(lambda: read_state(dagster, run) == "SUCCESS", DEADLINE_S, "the run's end")
    page.reload()
    page.get_by_text("materialized in run").first.wait_for()
    screenshot("backfill-done")
    frames = watch(pipeline, "backfill", str(TABLE), "--anew")
    folder = Path(os.environ.get(SCREENSHOTS_VARIABLE) or tmp_path)
    (folder / "backfill-terminal.txt").write_text(frames)
    # ANALYZE looks at some pages only: what it estimates may be a little less as well.
    shown = re.findall(r"([\d,]+) of (about )?([\d,]+) rows", frames)
    assert len({rows for rows, _, _ in shown}) > 3
    assert all(abs(int(all_rows.replace(",", "")) - ROWS) < ROWS / 100 for _, _, all_rows in shown)
    assert shown[-1] == (f"{ROWS:,}", "", f"{ROWS:,}")
    assert dagster.finish() == 0, dagster.describe()


def launch(dagster: RunningDagster, **config: Any) -> str:
    """Materialize the partition of the table; the run's id."""
    params = {
        "selector": REPOSITORY
        | {"pipelineName": "__ASSET_JOB", "assetSelection": [{"path": ["backfill"]}]},
        "runConfigData": json.dumps({"ops": {"backfill": {"config": config}}}),
        "executionMetadata": {
            "tags": [{"key": "dagster/partition", "value": partition_key(TABLE)}]
        },
    }
    answer = dagster.query(LAUNCH, params=params)["launchPipelineExecution"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


def read_progress(dagster: RunningDagster) -> list[tuple[int, int]]:
    """Rows and percent of what was observed on the way, oldest first."""
    told = dagster.query(OBSERVATIONS)["assetOrError"].get("assetObservations", [])
    found = [PROGRESS.match(one["description"] or "") for one in reversed(told)]
    return [(int(m[1].replace(",", "")), int(m[2])) for m in found if m]


def read_state(dagster: RunningDagster, run: str) -> str:
    answer = dagster.query(
        "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }", id=run
    )
    return str(answer["runOrError"]["status"])


def watch(pipeline: Pipeline, *arguments: str) -> str:
    """Run a command in a terminal; all that it showed there."""
    master, slave = pty.openpty()
    environment = pipeline.environment | {"COLUMNS": "140", "TERM": "xterm"}
    child = subprocess.Popen(
        walgate_command(*arguments, "--config", pipeline.folder / "walgate.toml"),
        stdin=slave, stdout=slave, stderr=slave, env=walgate_environment(environment),
    )  # fmt: skip
    os.close(slave)
    shown = bytearray()
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:
        pass  # The child has ended, and the terminal with it.
    finally:
        os.close(master)
    assert child.wait(DEADLINE_S) == 0, shown.decode()
    return shown.decode()
