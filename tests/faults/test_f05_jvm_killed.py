"""F5: Spark's JVM alone dies in mid-write, as the kernel kills it where memory runs out."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.walgate_command import walgate_command, walgate_environment

ROWS = 200_000
AT_ONCE_S = 30.0


def list_commits(table: Path) -> list[str]:
    """Give the commits of a Delta table."""
    return sorted(path.name for path in (table / "_delta_log").glob("*.json"))


@pytest.mark.timeout(600)
def test_f05_a_merge_whose_jvm_is_killed_says_so_and_the_next_is_right(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.database.execute("create table orders (id bigint primary key, note text)")
    pipeline.database.execute(
        f"insert into orders select i, md5(i::text) from generate_series(1, {ROWS}) i"
    )
    pipeline.catch_up()
    table = pipeline.root / "tables" / "public" / "orders"
    merge = ChildProcess(
        walgate_command("merge", "--config", pipeline.folder / "walgate.toml"),
        log=pipeline.folder / "merge.log",
        environment=walgate_environment(),
    )
    try:
        wait_for(
            lambda: any(table.glob("**/*.parquet")) or not merge.is_running,
            DEADLINE_S,
            "rows to be written",
        )
        (jvm,) = [p for p in psutil.Process(merge.pid).children() if p.name() == "java"]
        jvm.kill()
        assert merge.wait(AT_ONCE_S) == 3, merge.output()
    finally:
        if merge.is_running:
            merge.kill()
    assert len(list_commits(table)) == 1, "it was killed too late: the rows were committed"
    complaint = merge.output().splitlines()[-1]
    assert "Spark's JVM was killed by signal 9 during a merge" in complaint
    assert "fix: run the merge again" in complaint

    session = spark.newSession()
    lake = Lake(pipeline.lake)
    merge_until(session, lake, round_rows=1_000_000)
    rows = session.read.format("delta").load(str(table))
    assert rows.count() == rows.select("id").distinct().count() == ROWS
    assert rows.where("note <> md5(cast(id as string)) or note is null").count() == 0
