"""Which rewrites of files the driver does itself, and which files are joined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.fast_path import file_rewrite
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.spark.relations import insert, make_relation, update
from tests.spark.small_lake import IN_TASKS, SmallLake
from tests.spark.table_files import APART, find_result, list_files

T = make_relation("t", "k int4, v text, n numeric")
FIRST = [insert(T, str(k), "a", "1.5") for k in range(1, 6)]


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend an empty lake."""
    return SmallLake(spark, tmp_path)


@pytest.mark.parametrize(("most", "files"), [(1, 6), (1 << 30, 1)])
def test_files_are_joined_up_to_a_size(small: SmallLake, most: int, files: int) -> None:
    for key in range(1, 6):
        small.merge([insert(T, f"{row}{key}", "a", "1") for row in (1, 2)], limits=APART)
    assert len(list_files(small, T)) == 5
    changes = [update(T, f"1{key}", "b", "2") for key in range(1, 6)]
    limits = replace(IN_TASKS, small_file_bytes=0, joined_file_bytes=most)
    merged = find_result(small.merge(changes, limits=limits), T)
    assert (merged.way, merged.updated) == (WritePlan.REWRITE_FILES, 5)
    assert [row[1] for row in small.rows(T, "k", "v")] == ["b"] * 5 + ["a"] * 5
    # One row of each file stays. The rows that arrive make a file of their own, or join the others.
    assert len(list_files(small, T)) == files


def test_the_driver_rewrites_tiny_tables_and_gives_up_what_does_not_fit(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge(FIRST)
    calls: list[int] = []

    def run(*of: Any) -> Any:
        calls.append(1)
        return run_job(*of)

    run_job = file_rewrite._run_job
    monkeypatch.setattr(file_rewrite, "_run_job", run)

    def merge(key: int, limits: MergeLimits) -> int:
        calls.clear()
        merged = find_result(small.merge([insert(T, str(key), "b", "2")], limits=limits), T)
        assert merged.way is WritePlan.REWRITE_FILES
        return len(calls)

    def limit_size(more: int) -> MergeLimits:
        return replace(DEFAULT_LIMITS, driver_bytes=sum(list_files(small, T).values()) + more)

    assert merge(10, DEFAULT_LIMITS) == 0
    assert merge(11, replace(DEFAULT_LIMITS, driver_log_bytes=0)) == 1
    assert merge(12, limit_size(0)) == 1
    assert merge(13, limit_size(1)) == 0
    monkeypatch.setattr(file_rewrite, "_DRIVER_MEMORY", 1)
    assert merge(14, DEFAULT_LIMITS) == 1
