"""A merge that is killed while it rewrites files, or between their move and their commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.target.limits import DEFAULT_LIMITS
from spark_jobs.target.result import WritePlan
from tests.lakes import path_of
from tests.spark.merge.test_killed_merge import CHILD, PROJECT, kill_merge
from tests.spark.relations import delete, insert, make_relation, update
from tests.spark.small_lake import SmallLake

T = make_relation("t", "k int4, v text")
LEFT = [(1, "b"), (3, "a"), (9, "c")]


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """A table of three rows, and a change, a departure and an arrival in the log."""
    made = SmallLake(spark, tmp_path)
    made.merge([insert(T, str(k), "a") for k in (1, 2, 3)])
    made.commit([update(T, "1", "b"), delete(T, "2", None), insert(T, "9", "c")])
    return made


def list_named(folder: Path) -> set[str]:
    """The data files that any commit of a table names."""
    commits = (folder / "_delta_log").glob("*.json")
    actions = [json.loads(line) for file in commits for line in file.read_text().splitlines()]
    return {action["add"]["path"] for action in actions if "add" in action}


def check_files(small: SmallLake) -> None:
    folder = small.lake.locate(T.table)
    assert {file.name for file in path_of(folder).rglob("*.parquet")} == list_named(path_of(folder))
    assert not [*path_of(folder).glob("_attempts/*")]


@pytest.mark.timeout(600)
def test_a_killed_task_leaves_the_work_to_spark(small: SmallLake, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(CHILD),
            str(tmp_path),
            json.dumps({"driver_bytes": 0}),
        ],
        cwd=PROJECT,
        env=os.environ | {"WALGATE_CRASH_AT": "in_file_rewrite", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Spark merges the tables" in done.stderr
    assert small.rows(T) == LEFT
    check_files(small)
    small.merge([insert(T, "10", "d")])
    assert small.rows(T) == [*LEFT[:1], (10, "d"), *LEFT[1:]]


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_while_it_rewrites_files_leaves_nothing(
    small: SmallLake, tmp_path: Path
) -> None:
    kill_merge(tmp_path, "in_file_rewrite", limits=DEFAULT_LIMITS)
    assert [*path_of(small.lake.locate(T.table)).glob("_attempts/*")]
    (done,) = small.merge()
    assert done.tables["public.t"].way is WritePlan.REWRITE_FILES
    assert small.rows(T) == LEFT
    check_files(small)


@pytest.mark.timeout(600)
def test_files_of_a_merge_that_was_killed_before_its_commit_are_removed(
    small: SmallLake, tmp_path: Path
) -> None:
    folder = small.lake.locate(T.table)
    kill_merge(tmp_path, "before_files_committed", limits=DEFAULT_LIMITS)
    left = {file.name for file in path_of(folder).glob("*.parquet")} - list_named(path_of(folder))
    assert len(left) == 1, "the file is in the table's folder, and no commit names it"
    (done,) = small.merge()
    assert done.tables["public.t"].way is WritePlan.REWRITE_FILES
    assert small.rows(T) == LEFT
    check_files(small)
