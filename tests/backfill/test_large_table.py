"""A large table is paused, resumed, cancelled half-way and run again for the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from cdc_core.settings import load_settings
from orchestration.status.backfills import describe_backfills
from tests.backfill.test_crashes import start_worker
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

ROWS = int(os.environ.get("WALGATE_SOAK_ROWS", "10_000_000"))
DEADLINE_S = 3000
TABLE = "public.large"


def read_status(pipeline: Pipeline) -> dict[str, Any]:
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    found = describe_backfills(settings.lake)
    return found[0] if found else {"state": "none", "rows": 0}


def give(pipeline: Pipeline, order: str, state: str) -> dict[str, Any]:
    """Give an order by the command; the status once it is carried out."""
    answer = run_walgate("backfill", order, TABLE, folder=pipeline.folder)
    assert answer.exit_code == 0, answer
    return wait_until(pipeline, lambda status: status["state"] == state, state)


def wait_until(
    pipeline: Pipeline, is_reached: Callable[[dict[str, Any]], bool], what: str
) -> dict[str, Any]:
    """Look at the status whenever the ledger has grown, until it is as it should be."""
    log = pipeline.root / "ledger" / "backfills" / "_delta_log"
    seen, status = -1, read_status(pipeline)

    def look() -> bool:
        nonlocal seen, status
        grown = len(list(log.glob("*.json"))) if log.exists() else 0
        if grown != seen:
            seen, status = grown, read_status(pipeline)
        return is_reached(status)

    wait_for(look, DEADLINE_S, what)
    return status


def wait_for_rows(pipeline: Pipeline, rows: int) -> None:
    wait_until(pipeline, lambda status: status["rows"] >= rows, f"{rows} rows")


@pytest.mark.soak
@pytest.mark.timeout(4 * DEADLINE_S)
def test_a_large_table_is_paused_resumed_cancelled_and_run_for_the_rest(
    database18: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    database18.execute("create table large (id bigint primary key, a text, b int, c timestamptz)")
    database18.execute(
        "insert into large select i, md5(i::text), i % 100, now()"
        f" from generate_series(1, {ROWS}) i"
    )
    database18.execute("analyze large")
    pipeline = make_pipeline(database18)
    capture = pipeline.start_streaming()
    size = str(min(50_000, ROWS // 40))
    # So that an order comes in time, however small the table.
    rate = {"WALGATE_BACKFILL__ROWS_PER_SECOND": str(max(10_000, ROWS // 240))}
    first = start_worker(pipeline, "--chunk-rows", size, tables=[TABLE], **rate)
    wait_for_rows(pipeline, ROWS // 8)
    paused = give(pipeline, "pause", "paused")
    database18.execute(f"update large set b = -1 where id % {ROWS // 500} = 0")
    assert paused["rows"] < ROWS
    assert give(pipeline, "resume", "running")["rows"] < ROWS
    wait_for_rows(pipeline, ROWS // 2)
    cancelled = give(pipeline, "cancel", "cancelled")
    assert first.wait() == 3, first.output()
    assert ROWS // 2 <= cancelled["rows"] < ROWS
    rest = start_worker(pipeline, "--chunk-rows", size, tables=[TABLE])
    wait_for(lambda: not rest.is_running, DEADLINE_S, "the rest")
    assert rest.wait() == 0, rest.output()
    pipeline.finish(capture)
    done = read_status(pipeline)
    print(done)  # noqa: T201 - figures of a soak.
    assert done["state"] == "done"
    log = DeltaTable(pipeline.root / "staging" / "changes").to_pyarrow_dataset()
    is_read = (pc.field("op") == "read") & (pc.field("table") == TABLE)
    values = log.to_table(columns=["values"], filter=is_read).column("values")
    keys = pc.list_element(values, 0)
    # What was brought before the orders was not brought again, and nothing is missing but what
    # changed while it was read, which the stream brought.
    assert len(keys) == pc.count_distinct(keys).as_py()
    assert ROWS - 1000 <= len(keys) <= ROWS
    assert len(keys) + done["stale_dropped"] == ROWS
