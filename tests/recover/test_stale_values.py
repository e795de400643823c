"""A value that changed while no slot listened, and that no later change sent, is read again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from cdc_core.backfill import worker
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from orchestration.recovery.recover import plan_recovery, recover
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.as_of import table_at
from spark_jobs.query.read_bound import find_bound_at
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.recover.recovering import read_settings

T = TableName("public", "t")


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "without_the_rule"])
def test_no_value_of_an_older_epoch_outlives_the_backfill_after_a_lost_slot(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_guarded: bool,
) -> None:
    database18.execute("create table t (id int primary key, v int, big text)")
    database18.execute("alter table t alter big set storage external")
    pipeline = make_pipeline(database18)
    if not is_guarded:
        monkeypatch.setattr(worker, "complete_rows", lambda *_, **__: None)
    database18.execute("insert into t select i, i, repeat('old', 900) from generate_series(1, 9) i")
    pipeline.catch_up()
    session, lake = spark.newSession(), Lake.of(read_settings(pipeline))
    merge_until(session, lake, round_rows=1_000_000)

    database18.query("select pg_drop_replication_slot(%s)", [pipeline.slot])
    database18.execute("update t set big = repeat('new', 900) where id in (4, 5)")
    settings = read_settings(pipeline)
    list(recover(settings, plan_recovery(settings)))
    changes = [
        "update t set v = 100 where id = 4; update t set v = 100, id = 50 where id = 5",
    ]

    def reach(name: str) -> None:
        if name == "after_chunk_stored" and changes:
            database18.execute(changes.pop())

    monkeypatch.setattr("cdc_core.backfill.reading.reach", reach)
    run_backfills(settings, [T], chunk_rows=100, parallel=1, stop=threading.Event())
    pipeline.catch_up()
    merge_until(session, lake, round_rows=1_000_000)
    reading = table_at(session, lake, T, find_bound_at(lake, "latest"))
    assert (reading.halt, reading.incomplete) == (None, None)
    rows = reading.rows.selectExpr("id", "v", "big", "_holes is not null").orderBy("id").collect()
    source = database18.query("select id, v, big, false from t order by id")
    assert ([tuple(row) for row in rows] == source) == is_guarded
    if not is_guarded:
        assert not any(row[3] for row in rows), "no hole names the stale value"
