"""Jobs that run side by side: their results, their errors, and the tables that they merge."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session.side_by_side import run_side_by_side
from spark_jobs.target.result import WritePlan
from tests.spark.relations import delete, insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SmallLake

DEADLINE_S = 60
LONG_S = 5
JOBS = 30
PROJECT = Path(__file__).parents[3]
# A merge on a daemon thread, as under Dagster; its run is called off while two jobs never end.
PROGRAM = """
import sys, threading
sys.path.insert(0, ".")
from types import SimpleNamespace
from spark_jobs.session import side_by_side

side_by_side.inheritable_thread_target = lambda session: lambda work: work
session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
met = threading.Barrier(3)

def work():
    met.wait()
    threading.Event().wait()

merging = lambda: side_by_side.run_side_by_side(session, [work] * 5)
threading.Thread(target=merging, daemon=True).start()
met.wait()
sys.exit(7)
"""
TABLES = [make_relation(f"t{i}", "k int4, v text") for i in range(3)]


def test_two_jobs_run_at_once_and_results_are_in_order(spark: SparkSession) -> None:
    met = threading.Barrier(2, timeout=DEADLINE_S)

    def meet(name: str) -> str:
        met.wait()
        return name

    jobs = [partial(meet, name) for name in ("a", "b", "c", "d")]
    assert run_side_by_side(spark, jobs) == ["a", "b", "c", "d"]
    assert run_side_by_side(spark, [lambda: "alone"]) == ["alone"]
    assert run_side_by_side(spark, []) == []


def test_the_error_of_a_job_is_raised_and_no_further_job_begins(spark: SparkSession) -> None:
    began: list[int] = []
    is_over = threading.Event()

    def work(number: int) -> None:
        began.append(number)
        if number == 0:
            # It would last until every other job has ended.
            is_over.wait(LONG_S)
        elif number == 1:
            raise ConnectionError
        elif number == JOBS - 1:
            is_over.set()
        assert spark.range(9).count() == 9

    with pytest.raises(ConnectionError):
        run_side_by_side(spark, [partial(work, number) for number in range(JOBS)])
    assert len(began) < JOBS


def test_tables_that_are_merged_side_by_side_have_their_own_bound_and_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path, limits=MERGE_ONLY)
    small.merge(*[[insert(one, "1", one.table.name), insert(one, "2", "a")] for one in TABLES])
    ends = small.commit(
        *[[update(one, "2", f"{one.table.name} new"), delete(one, "1", None)] for one in TABLES]
    )
    (done,) = small.merge()
    for one in TABLES:
        merged = done.tables[str(one.table)]
        assert merged.way is WritePlan.MERGE
        assert (merged.inserted, merged.updated, merged.deleted) == (0, 1, 1)
        rows = [(2, f"{one.table.name} new")]
        assert small.rows(one) == rows
        assert small.plain(small.at(one, ends[-1]).rows, one) == rows


def test_a_process_ends_although_jobs_wait(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.run([sys.executable, program], cwd=PROJECT, timeout=DEADLINE_S, check=False)
    assert run.returncode == 7
