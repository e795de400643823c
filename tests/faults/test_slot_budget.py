"""The slot never holds WAL for us in silence: status, log and check say how much, and how long.

Either the log's storage is down, so that nothing is staged and nothing confirmed while the source
writes on; or (F15) a transaction of the source stays open, and nothing we confirm releases WAL.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
import psycopg
import pytest

from cdc_core.settings import load_settings
from cdc_core.source.retention import Growth
from orchestration.capture.checks import evaluate_staging
from orchestration.runs.source_view import read_source_view
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.postgres_server import Database, PostgresServer
from tests.walgate_command import run_walgate

BUDGET_MB = 24
BUDGET = f"{BUDGET_MB}MB"
CHUNK = 100


@pytest.fixture(params=[pytest.param(15, marks=pytest.mark.soak), 18])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Lend each server in turn; 15 does not say since when a slot is not in use."""
    lent: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    return lent


@pytest.fixture
def down(server: PostgresServer, make_pipeline: Callable[..., Pipeline]) -> Iterator[Pipeline]:
    """Lend a pipeline whose log stands behind a file, and goes back to its place afterwards."""
    with lend_database(server) as database:
        yield from go_down(database, make_pipeline(database))


def go_down(database: Database, pipeline: Pipeline) -> Iterator[Pipeline]:
    """Take the log away under a capture; afterwards nothing may be missing."""
    pipeline.environment = {"WALGATE_SOURCE__SLOT_BUDGET": BUDGET}
    database.execute("create table orders (id bigserial primary key, note text)")
    database.execute("insert into orders (note) values ('staged')")
    pipeline.catch_up()
    log = pipeline.root / "staging" / "changes" / "_delta_log"
    child = pipeline.start_streaming()
    log.rename(log.with_name("hidden"))
    log.touch()
    yield pipeline
    log.unlink()
    log.with_name("hidden").rename(log)
    # Stopped in the pause before the next try, it would say that the batch is not staged.
    pipeline.wait_until_staged(pipeline.staged() + 1)
    pipeline.finish(child)
    pipeline.catch_up()
    assert pipeline.require_truth() > 1


@contextmanager
def writing(database: Database, *, pause_s: float = 0.1) -> Iterator[None]:
    """Write some 400 kB of WAL a second in the background."""
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            while not ended.wait(pause_s):
                connection.execute(
                    "insert into orders (note) select repeat(md5(i::text), 12)"
                    f" from generate_series(1, {CHUNK}) i"
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def write_wal(database: Database, megabytes: int) -> None:
    """Write about so much WAL in one transaction."""
    database.execute(
        "insert into orders (note) select repeat('x', 1000)"
        f" from generate_series(1, {1000 * megabytes})"
    )


def read_retained_mb(pipeline: Pipeline) -> int:
    """Give what the slot holds back now, in whole MB."""
    query = (
        "select (pg_current_wal_lsn() - restart_lsn)::bigint >> 20 from pg_replication_slots"
        " where slot_name = %s"
    )
    ((retained,),) = pipeline.database.query(query, [pipeline.slot])
    return int(retained)


def status(pipeline: Pipeline) -> dict[str, Any]:
    """Give what `status` says of the slot and its problems; both forms must agree."""
    environment = pipeline.environment
    answer = run_walgate("status", "--json", folder=pipeline.folder, environment=environment)
    found: dict[str, Any] = json.loads(answer.stdout)
    is_failing = any(problem["severity"] == "error" for problem in found["problems"])
    assert answer.exit_code == (1 if is_failing else 0), answer
    plain = run_walgate("status", folder=pipeline.folder, environment=environment)
    assert plain.exit_code == answer.exit_code, plain
    assert "s left at the present rate" in plain.stdout
    problems = {problem["code"]: problem for problem in found["problems"]}
    return {**found["slot"], **problems}


def last_said(pipeline: Pipeline) -> dict[str, str]:
    """Give the fields of capture's newest line about the slot."""
    lines = [line for line in pipeline.children[-1].output().splitlines() if "slot retains" in line]
    return dict(pair.split("=", 1) for pair in lines[-1].split() if "=" in pair)


def check_slot(pipeline: Pipeline) -> dg.AssetCheckEvaluation:
    """Give the check as the sensor evaluates it on its second tick."""
    settings = load_settings(pipeline.folder / "walgate.toml", pipeline.environment)
    growth = Growth()
    read_source_view(settings, growth)
    threading.Event().wait(0.6)  # Between two ticks.
    slot, lag = evaluate_staging(settings, read_source_view(settings, growth))
    assert (slot.check_name, lag.check_name) == ("slot_budget", "staging_lag")
    assert not lag.passed, "what cannot be read is not in time"
    return slot


def test_with_the_storage_down_all_say_what_the_slot_holds_back_and_for_how_long(
    down: Pipeline,
) -> None:
    database, child = down.database, down.children[-1]
    with writing(database):
        # Long before any level is reached: we hold it back, and that is said at once.
        down.wait_for_line(child, "slot retains WAL")
        said = last_said(down)
        assert int(said["retained_bytes"]) > 0
        assert float(said["budget_used_percent"]) < 50
        assert "level_percent" not in said
        shown = status(down)
        assert shown["retained_bytes"] > 0
        assert 0 < shown["seconds_left"] < 3600
        assert shown["lake_down"]["severity"] == "error"
        check = check_slot(down)
        assert float(str(check.metadata["seconds_left"].value)) > 0
        assert check.passed
    for level in (50, 75, 90):
        # The writer may have written some of it already, on a busy machine most of it.
        write_wal(database, max(0, BUDGET_MB * (level + 5) // 100 - read_retained_mb(down)))
        down.wait_for_line(child, f"level_percent={level}")
    said = last_said(down)
    assert float(said["budget_used_percent"]) >= 90
    assert float(said["seconds_left"]) >= 0
    shown = status(down)
    assert shown["slot_budget"]["severity"] == "error"
    assert "90 % of its budget" in shown["slot_budget"]["what"]
    check = check_slot(down)
    assert not check.passed
    assert check.severity is dg.AssetCheckSeverity.ERROR
    assert "retained" in str(check.metadata["summary"].value)


def test_f15_a_long_transaction_of_the_source_is_told_by_bytes_and_not_taken_for_lag(
    database18: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    database18.execute("create table orders (id bigserial primary key, note text)")
    pipeline = make_pipeline(database18)
    pipeline.environment = {"WALGATE_SOURCE__SLOT_BUDGET": BUDGET}
    child = pipeline.start_streaming()
    with psycopg.connect(database18.dsn) as writer:
        writer.execute("insert into orders (note) values ('open')")
        write_wal(database18, 14)
        committed = pipeline.current_lsn()
        pipeline.wait_for_line(child, "level_percent=50")
        pipeline.wait_until_staged(committed)
        shown = status(pipeline)
        assert shown["retained_bytes"] > 12 << 20
        assert "end long transactions" in shown["slot_budget"]["fix"]
        assert "storage" not in shown
        assert "reason" not in last_said(pipeline)
    pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(child)
    assert pipeline.require_truth() == 2
