"""From a database with data to whole tables, without a thought: by a shell, and under Dagster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.read_point import ReadPoint
from spark_jobs.lake.completeness import NEVER
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import find_cut
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.query.sql import answer_query
from tests.deadline import wait_for
from tests.fix_dagster import RunningDagster
from tests.fix_pipeline import Pipeline
from tests.lakes import locate_lake
from tests.postgres_server import Database
from tests.walgate_command import Answer, run_walgate

FILL = "insert into {table} select n, 'row ' || n from generate_series(1, {rows}) n"
DAGSTER_DEADLINE_S = 600.0


def make_table(database: Database, table: str, rows: int, key: str = "primary key") -> None:
    database.execute(f"create table {table} (id bigint {key}, v text)")
    if rows:
        database.execute(FILL.format(table=table, rows=rows))
    database.execute(f"analyze {table}")


def read_states(folder: Path) -> dict[str, dict[str, Any]]:
    """Tell how each table stands, by its name in public."""
    answer = run_walgate("status", "--json", folder=folder)
    states = {t["table"].removeprefix("public."): t for t in json.loads(answer.stdout)["tables"]}
    is_halted = any(table["state"] == "halted" for table in states.values())
    assert answer.exit_code == (1 if is_halted else 0), answer
    return states


def done_by(answer: Answer) -> dict[str, int]:
    """Tell the tables that a backfill has read, and how many rows of each."""
    assert answer.exit_code == 0, answer
    lines = [line.split("\t") for line in answer.stdout.splitlines()]
    return {table.removeprefix("public."): int(rows) for table, rows, *_ in lines}


@contextmanager
def without_slot(database: Database, slot: str) -> Iterator[None]:
    """Let no slot outlive the database's test."""
    try:
        yield
    finally:
        database.query("select pg_drop_replication_slot(%s)", [slot])


def test_a_shell_leads_from_data_to_whole_tables(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:
    make_table(database18, "big", 3000)
    make_table(database18, "small", 10)
    make_table(database18, "empty", 0)
    make_table(database18, "keyless", 5, key="")
    slot = f"s_{database18.name}"
    made = run_walgate("init", "--dsn", database18.dsn, "--slot", slot, "--create", folder=tmp_path)
    assert made.exit_code == 0, made
    assert "walgate up" in made.stdout
    with without_slot(database18, slot):
        # By anyone, with what they have at hand.
        database18.execute("alter publication walgate add table keyless")
        states = read_states(tmp_path)
        for name in ("big", "small", "empty"):
            assert (states[name]["state"], states[name]["reason"]) == ("queued", NEVER)
            assert "walgate backfill" in states[name]["fix"]
        assert states["keyless"]["state"] == "halted"
        assert "has no key" in states["keyless"]["reason"]

        first = run_walgate("backfill", folder=tmp_path)
        assert done_by(first) == {"empty": 0, "small": 10, "big": 3000}
        make_table(database18, "late", 20)
        database18.execute("alter publication walgate add table late")
        database18.execute("insert into late values (21, 'streamed')")
        assert run_walgate("replicate", "--until-current", folder=tmp_path).exit_code == 0

        session, lake = (
            spark.newSession(),
            Lake(locate_lake(tmp_path / "lake")),
        )
        merge_until(session, lake, round_rows=1_000_000)
        states = read_states(tmp_path)
        assert {name: states[name]["state"] for name in ("big", "small", "empty", "late")} == {
            **dict.fromkeys(("big", "small", "empty"), "streaming"),
            "late": "queued",
        }
        cut = find_cut(lake)
        assert cut is not None
        assert cut.partial == ("public.late",)
        points: tuple[ReadPoint, ...] = ("latest", "live")
        for point in points:
            query = "select (select count(*) from big), (select count(*) from late)"
            answer = answer_query(session, lake, query, find_bound_at(lake, point))
            assert [tuple(row) for row in answer.rows.collect()] == [(3000, 1)]
            assert {str(t): lack.reason for t, lack in answer.lacking.items()} == {
                "public.late": NEVER
            }

        second = run_walgate("backfill", folder=tmp_path)
        assert done_by(second) == {"late": 21}
        merge_until(session, lake, round_rows=1_000_000)
        assert {s["state"] for n, s in read_states(tmp_path).items() if n != "keyless"} == {
            "streaming"
        }
        for name in ("big", "small", "empty", "late"):
            answer = answer_query(
                session, lake, f"select id, v from {name} order by id", find_bound_at(lake, "live")
            )
            assert answer.lacking == {}
            truth = database18.query(f"select id, v from {name} order by id")
            assert [tuple(row) for row in answer.rows.collect()] == truth
        third = run_walgate("backfill", folder=tmp_path)
        assert done_by(third) == {}
        assert "no table waits" in third.stderr


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_dagster_leads_from_data_to_whole_tables_though_its_run_is_killed(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    start_dagster_on: Callable[..., RunningDagster],
) -> None:
    make_table(database18, "big", 400_000)
    make_table(database18, "small", 10)
    pipeline = make_pipeline(database18)
    dagster = start_dagster_on(pipeline, WALGATE_BACKFILL__AUTOMATIC="true")
    dagster.wait_until_ready()

    worker = wait_for(
        lambda: dagster.find_worker("backfill_tables"), DAGSTER_DEADLINE_S, "a run to read them"
    )
    assert worker is not None
    worker.kill()
    # Published with all others, by whoever made it.
    make_table(database18, "late", 30)

    def is_whole() -> bool:
        states = read_states(pipeline.folder)
        wanted = ("big", "small", "late")
        return all(states.get(name, {}).get("state") == "streaming" for name in wanted)

    wait_for(is_whole, DAGSTER_DEADLINE_S, "all tables to be whole")
    assert dagster.finish() == 0
    assert run_walgate("merge", folder=pipeline.folder).exit_code == 0
    query = (
        "select (select sum(id) from big), (select sum(id) from small), (select sum(id) from late)"
    )
    answer = run_walgate("sql", query, "--at", "live", folder=pipeline.folder)
    ((*sums,),) = database18.query(query)
    assert answer.stdout.splitlines()[1:] == ["\t".join(map(str, sums))]
    assert "table partial" not in answer.stderr
