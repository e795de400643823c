"""A database with data, backfilled by the command while it is written to: its tables equal it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.end_to_end.pgbench_tables import KEYS, read_lake, read_source, run_pgbench, start_load
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

TABLES = [f"public.{name}" for name in KEYS]
KEYLESS = "public.pgbench_history"


# Three processes on two busy cores share the time.
@pytest.mark.timeout(900)
@pytest.mark.core
def test_a_database_with_data_leads_to_whole_tables(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    run_pgbench(database18, "-i", "-q", "-s", "1")
    pipeline = make_pipeline(database18)
    lake = Lake(pipeline.lake)
    load = start_load(database18, 5)
    # No capture runs: the command runs its own.
    answer = run_walgate("backfill", *TABLES, "--chunk-rows", "20000", folder=pipeline.folder)
    assert answer.exit_code == 0, answer.stderr
    said = [line.split("\t") for line in answer.stdout.splitlines()]
    assert load.wait() == 0
    assert {line[0] for line in said} == set(TABLES)
    merge_and_compare(pipeline, spark, lake, database18)

    # What was changed in the lake by hand is repaired by another backfill.
    damaged = open_delta(lake.locate(TableName("public", "pgbench_accounts")))
    damaged.delete("aid % 1000 = 1")
    damaged.update({"abalance": "-1"}, predicate="aid % 1000 = 2")
    damaged.update({"aid": "aid + 1000000"}, predicate="aid % 1000 = 3")
    answer = run_walgate("backfill", "--all", folder=pipeline.folder)
    assert answer.exit_code == 0, answer.stderr
    assert len(answer.stdout.splitlines()) == len(TABLES)
    assert f"left out: {KEYLESS}: the table has no key" in answer.stderr
    merge_and_compare(pipeline, spark, lake, database18)


def merge_and_compare(
    pipeline: Pipeline, spark: SparkSession, lake: Lake, database: Database
) -> None:
    """Stage and merge everything; both sides must be equal."""
    pipeline.catch_up()
    session = spark.newSession()
    rounds = merge_until(session, lake, round_rows=2_000_000)
    assert set(rounds[-1].halted) <= {KEYLESS}
    for table, key in KEYS.items():
        assert read_lake(session, lake, table, key).equals(read_source(database, table, key))
