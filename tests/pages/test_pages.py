"""What a person sees on Dagster's page of a pipeline, and what a click does there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from deltalake import DeltaTable
from playwright.sync_api import Page, expect

from orchestration.runs.hosting import WORKER_TAG
from tests.deadline import wait_for
from tests.fix_dagster import READY_DEADLINE_S, RunningDagster
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.fix_redis import RedisServer
from tests.postgres_server import PostgresServer

Screenshot = Callable[[str], None]
# Runs this short roll over while the other tests look elsewhere.
RUN_MINUTES = 0.2
LINGER_S = 3
# As read off a machine whose two cores have other work.
PAGE_DEADLINE_MS = 60_000
DRAIN_DEADLINE_MS = 150_000
TABLES = """
    create table customers (id int primary key, name text);
    create table orders (id int primary key, customer int references customers, total numeric);
"""


@pytest.fixture(scope="module")
def dagster(
    postgres18: PostgresServer,
    redis_process: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningDagster]:
    """Lend one running stack, with two tables that were staged and merged, to all tests."""
    with lend_database(postgres18) as database:
        database.execute(TABLES)
        folder = tmp_path_factory.mktemp("pages")
        pipeline = Pipeline(database, folder, redis=redis_process.url)
        dagster = RunningDagster(
            pipeline,
            WALGATE_CAPTURE__RUN_MINUTES=str(RUN_MINUTES),
            WALGATE_MERGE__LINGER_SECONDS=str(LINGER_S),
        )
        try:
            dagster.wait_until_ready()
            database.execute(
                "insert into customers select g, 'c' || g from generate_series(1, 9) g"
            )
            database.execute(
                "insert into orders select g, 1 + g % 9, g from generate_series(1, 99) g"
            )
            yield dagster
            assert dagster.finish() == 0, dagster.describe()
            assert dagster.find_left() == []
        finally:
            dagster.end()


@pytest.fixture(autouse=True)
def _deadline() -> None:
    expect.set_options(timeout=PAGE_DEADLINE_MS)


def test_the_graph_shows_the_log_the_tables_and_the_cut(
    dagster: RunningDagster, page: Page, screenshot: Screenshot
) -> None:
    page.goto(f"{dagster.url}/asset-groups")
    # Groups come folded, in the graph as in the list beside it.
    expect(page.get_by_text("Materialize all (5)")).to_be_visible()
    for group in ("staging", "tables", "ledger", "backfill"):
        _find_visible(page, group).last.click()
    for asset in ("changes", "customers", "orders", "cuts", "backfill"):
        expect(_find_visible(page, asset).last).to_be_visible()
    screenshot("graph")


def test_a_run_ends_by_itself_and_the_next_follows(
    dagster: RunningDagster, page: Page, screenshot: Screenshot
) -> None:
    first = dagster.wait_for_run("replicate", "SUCCESS")
    second = dagster.wait_for_run("replicate", "STARTED", "SUCCESS", after=first["runId"])
    page.goto(f"{dagster.url}/locations/walgate/jobs/replicate/runs")
    for run in (first, second):
        expect(page.get_by_role("link", name=run["runId"][:8])).to_be_visible()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    screenshot("runs")
    assert first["endTime"] - first["startTime"] >= RUN_MINUTES * 60
    # One at a time, and not a long time apart.
    assert 0 < second["startTime"] - first["endTime"] < READY_DEADLINE_S


def test_the_log_plots_its_lag_and_its_rows(
    dagster: RunningDagster, page: Page, screenshot: Screenshot
) -> None:
    wait_for(
        lambda: len(dagster.read_materializations("staging", "changes")) > 1,
        READY_DEADLINE_S,
        "two materializations of the log",
    )
    newest = dagster.read_materializations("staging", "changes")[0]
    facts = {entry["label"]: entry for entry in newest["metadataEntries"]}
    page.goto(f"{dagster.url}/assets/staging/changes?view=overview")
    expect(page.get_by_text("The ordered log of every change")).to_be_visible()
    expect(page.get_by_text(facts["staged_lsn"]["text"]).first).to_be_visible()
    page.get_by_role("button", name="Plots").click()
    for figure in ("lag_seconds", "lag_bytes", "rows", "rows_per_second"):
        heading = page.get_by_text(figure, exact=True)
        heading.scroll_into_view_if_needed()
        expect(heading).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    screenshot("plots")


@pytest.mark.parametrize(
    ("sensor", "reason"),
    [
        ("keep_replicating", r"run [0-9a-f]{8} streams, staged [0-9A-F]+/[0-9A-F]+"),
        ("merge_staged_changes", r"no changes above the cut: merged through [0-9A-F]+/[0-9A-F]+"),
    ],
    ids=["keep_replicating", "merge_staged_changes"],
)
def test_a_tick_tells_its_reason(
    dagster: RunningDagster, page: Page, screenshot: Screenshot, sensor: str, reason: str
) -> None:
    def find_tick() -> bool:
        reasons = [tick["skipReason"] or "" for tick in dagster.read_ticks(sensor)]
        return any(re.search(reason, found) for found in reasons)

    wait_for(find_tick, READY_DEADLINE_S, f"a tick of {sensor} with its reason")
    page.goto(f"{dagster.url}/locations/walgate/sensors/{sensor}")
    # The ticks' table may be drawn anew under the pointer.
    ticks = page.get_by_role("button", name="0 runs requested").or_(
        page.locator("a", has_text="0 runs requested")
    )
    ticks.first.click()
    # That of the newest tick, which may be another than the one above.
    shown = re.compile(r"Skip reason:\s*(run [0-9a-f]{8} |no changes above the cut: merged)")
    expect(page.get_by_text(shown).first).to_be_visible()
    screenshot(f"ticks-{sensor}")


def test_a_click_merges(dagster: RunningDagster, page: Page, screenshot: Screenshot) -> None:
    """From here on the sensor launches no merges."""
    page.goto(f"{dagster.url}/locations/walgate/sensors/merge_staged_changes")
    page.locator("label", has=page.get_by_role("checkbox")).first.click()
    expect(page.get_by_role("checkbox").first).not_to_be_checked()
    wait_for(
        lambda: all(run["endTime"] for run in dagster.read_runs("merge")),
        READY_DEADLINE_S,
        "the last merge of the sensor to end",
    )
    dagster.pipeline.database.execute("insert into customers values (77, 'by click')")
    _wait_until_staged(dagster)
    page.goto(f"{dagster.url}/assets/tables/public/customers")
    page.get_by_role("button", name="Materialize").first.click()
    run = dagster.wait_for_run("__ASSET_JOB", "SUCCESS", "FAILURE")
    assert run["status"] == "SUCCESS", dagster.describe()
    table = DeltaTable(dagster.pipeline.root / "tables" / "public" / "customers")
    rows = {row["id"]: row["name"] for row in table.to_pyarrow_table().to_pylist()}
    assert rows == {n: f"c{n}" for n in range(1, 10)} | {77: "by click"}
    page.reload()
    expect(page.get_by_text("Row count").first).to_be_visible()
    for column in ("id", "name"):
        expect(page.get_by_text(column, exact=True).first).to_be_visible()
    screenshot("table")


def _find_visible(page: Page, text: str) -> Any:
    """A text that is shown; the page keeps others out of sight to measure them."""
    return page.get_by_text(text, exact=True).locator("visible=true")


def test_a_run_from_the_launchpad_is_cancelled_and_loses_nothing(
    dagster: RunningDagster, page: Page, screenshot: Screenshot
) -> None:
    database = dagster.pipeline.database
    page.goto(f"{dagster.url}/locations/walgate/jobs/replicate")
    page.get_by_text("Launchpad", exact=True).click()
    editor = page.locator(".CodeMirror")
    expect(editor).to_contain_text(f"run_minutes: {RUN_MINUTES}")
    screenshot("launchpad")
    editor.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("ops: {replicate_changes: {config: {run_minutes: 20.0}}}")
    page.get_by_role("button", name="Launch Run").click()
    page.wait_for_url("**/runs/*")
    run = page.url.rsplit("/", 1)[1].split("?")[0]
    # It waits for the one that streams, and then it is the one.
    wait_for(
        lambda: WORKER_TAG in dagster.read_tags(run),
        READY_DEADLINE_S,
        "the launched run to be under way",
    )
    dagster.wait_until_streaming()
    database.execute("update orders set total = total + 1")
    page.get_by_role("button", name="Terminate").click()
    page.get_by_role("button", name="Terminate 1 run").click()
    database.execute("insert into orders select g, 1, g from generate_series(1001, 3000) g")
    expect(page.get_by_text("Canceled", exact=True).first).to_be_visible(timeout=DRAIN_DEADLINE_MS)
    screenshot("canceled")
    # The next run goes on where this one drained.
    _wait_until_staged(dagster)
    dagster.pipeline.require_truth()


def _wait_until_staged(dagster: RunningDagster) -> None:
    """Wait until runs have staged all that is committed now."""
    lsn = dagster.pipeline.current_lsn()
    wait_for(lambda: dagster.pipeline.staged() >= lsn, READY_DEADLINE_S, "staging to catch up")
