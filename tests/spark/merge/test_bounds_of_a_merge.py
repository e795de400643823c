"""What a merge holds at once, what it leaves behind, and what it does without a Spark job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_jobs.lake.lake import Lake
from spark_jobs.merge import targets
from spark_jobs.target.result import WritePlan
from tests.lakes import path_of
from tests.spark.relations import insert, make_relation, update
from tests.spark.small_lake import SmallLake
from tests.spark.table_files import find_result

TABLES = [make_relation(f"t{number}", "k int4, v text") for number in range(5)]
T = TABLES[0]
LONG_AGO = 1_000_000_000


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    return SmallLake(spark, tmp_path)


def test_a_round_locks_few_tables_at_once(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, held, most = Lake.lock_table, 0, 0

    @contextmanager
    def count(lake: Lake, name: str, *, jvm: int | None) -> Iterator[None]:
        nonlocal held, most
        with lock(lake, name, jvm=jvm):
            held += name != "rounds"
            most = max(most, held)
            yield
        held -= name != "rounds"

    monkeypatch.setattr(Lake, "lock_table", count)
    monkeypatch.setattr(targets, "_MAX_LOCKS", 2)
    (done,) = small.merge([insert(one, "1", "a") for one in TABLES])
    assert most == 2
    assert len(done.tables) == len(TABLES)
    assert [small.rows(one) for one in TABLES] == [[(1, "a")]] * len(TABLES)


def test_old_commits_of_a_table_stay(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a")])
    log = small.lake.locate(T.table) / "_delta_log"
    for number in range(10):
        for commit in path_of(log).glob("*.json"):
            os.utime(commit, (LONG_AGO, LONG_AGO))
        small.merge([update(T, "1", f"v{number}")])
    assert [*path_of(log).glob("*.checkpoint.parquet")]
    assert len([*path_of(log).glob("*.json")]) == small.version(T) + 1


def test_a_job_that_cannot_begin_leaves_the_tables_to_spark(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([insert(T, "1", "a")])

    def refuse(*_: Any) -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(SparkContext, "parallelize", refuse)
    merged = find_result(small.merge([update(T, "1", "b")]), T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE, "a task failed: OSError")
    assert small.rows(T) == [(1, "b")]


def test_a_merge_writes_no_file_that_arrow_could_not_rewrite(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.files.maxRecordsPerFile") == "1000000"
