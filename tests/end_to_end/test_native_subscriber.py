"""PostgreSQL itself subscribes to the same publication: at rest its tables and ours are equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.end_to_end.stream_scenarios import COMMON, PUBLICATION, SCENARIOS, split_steps
from tests.fix_pipeline import Pipeline
from tests.fix_subscriber import Subscriber
from tests.postgres_server import Database, PostgresServer


def run_step(database: Database, step: str) -> None:
    """Run the statements of a step on one connection."""
    statements = [step] if step.startswith("do ") else step.split(";")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def set_up(
    source: Database, pipeline: Pipeline, make_subscriber: Callable[..., Subscriber]
) -> Subscriber:
    """Make the tables in both, the publication, then the slots."""
    for step in split_steps(COMMON + "".join(f"\n\n{s.make}" for s in SCENARIOS)):
        source.execute(step)
    source.execute("drop publication walgate")
    source.execute(PUBLICATION)
    if source.server.version >= 18:
        source.execute("alter publication walgate set (publish_generated_columns = stored)")
    pipeline.make_slot_again()
    subscriber = make_subscriber(source)
    for step in split_steps(COMMON + "".join(f"\n\n{s.receive or s.make}" for s in SCENARIOS)):
        subscriber.execute(step)
    subscriber.subscribe()
    return subscriber


def happen(source: Database, *, halfway: Callable[[], object]) -> None:
    """Take the steps of all scenarios by turns."""
    histories = [split_steps(scenario.happens) for scenario in SCENARIOS]
    longest = max(map(len, histories))
    for number in range(longest):
        for history in histories:
            for step in history[number : number + 1]:
                run_step(source, step)
        if number == longest // 2:
            halfway()


def read_texts(spark: SparkSession, path: Path) -> tuple[list[str], list[tuple[str | None, ...]]]:
    """Give a table's own columns, and its rows as texts in order."""
    frame = spark.read.format("delta").load(str(path))
    columns = [column for column in frame.columns if not column.startswith("_")]
    rows = frame.selectExpr(*(f"cast(`{column}` as string)" for column in columns)).collect()
    return columns, sorted((tuple(row) for row in rows), key=repr)


@pytest.mark.parametrize("version", [pytest.param(15, marks=pytest.mark.soak), 18])
def test_our_tables_and_a_native_subscriber_s_are_equal(
    private_postgres: Callable[..., PostgresServer],
    make_pipeline: Callable[..., Pipeline],
    make_subscriber: Callable[..., Subscriber],
    spark: SparkSession,
    version: int,
) -> None:
    server = private_postgres(
        version, max_prepared_transactions="5", logical_decoding_work_mem="64kB"
    )
    source = server.create_database("source")
    pipeline = make_pipeline(source)
    subscriber = set_up(source, pipeline, make_subscriber)
    happen(source, halfway=pipeline.catch_up)

    # A table that comes into a published schema, and one that leaves the publication.
    added = "create table events.added (id int primary key, v text)"
    source.execute(added)
    subscriber.execute(added)
    subscriber.refresh()
    source.execute("insert into events.added values (1, 'a')")
    source.execute("insert into leaving values (1, 'sent')")
    subscriber.wait()
    source.execute("alter publication walgate drop table leaving")
    source.execute("insert into leaving values (2, 'not sent')")
    pipeline.catch_up()
    subscriber.wait()

    session = spark.newSession()
    lake = Lake(pipeline.lake)
    rounds = merge_until(session, lake, round_rows=1_000_000)
    assert not rounds[-1].halted, rounds[-1].halted
    tables = [table for scenario in SCENARIOS for table in scenario.tables]
    found = {}
    for table in [*tables, "events.added", "public.leaving"]:
        columns, ours = read_texts(session, pipeline.root / "tables" / table.replace(".", "/"))
        assert ours, f"{table} is empty, and says nothing"
        assert ours == subscriber.rows(table, columns), table
        found[table] = columns
    assert ("twice" in found["events.generated"]) == (version >= 18)
