"""Other processes read several tables while a shop sells, and see no half transaction."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from orchestration.demo.invariants import list_whole_cuts
from orchestration.demo.shop import fill_shelves, import_archive, make_tables
from orchestration.demo.writers import Writers
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.child_process import ChildProcess
from tests.end_to_end.shop_reader import TABLES
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import REPOSITORY, run_walgate

# How many times each process reads all tables.
READS = {"polars": 120, "spark": 80}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("reads", "rate"),
    [
        pytest.param({"polars": 5}, 10, id="sample"),
        pytest.param(READS, 15, id="all", marks=pytest.mark.soak),
    ],
)
def test_readers_see_no_half_transaction_of_a_shop_that_sells(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    tmp_path: Path,
    reads: dict[str, int],
    rate: float,
) -> None:
    with psycopg.connect(database18.dsn, autocommit=True) as connection:
        make_tables(connection)
        fill_shelves(connection)
        import_archive(connection, rows=600)
    pipeline = make_pipeline(database18)
    answer = run_walgate("backfill", *map(str, TABLES), folder=pipeline.folder)
    assert answer.exit_code == 0, answer.stderr
    capture = pipeline.start_streaming()
    session, lake = spark.newSession(), Lake(pipeline.lake)
    writers = Writers(database18.dsn, writers=2, per_second=rate, seed=20261126)
    readers: dict[str, ChildProcess] = {}
    with selling(writers), ending(readers):
        while not readers or any(reader.is_running for reader in readers.values()):
            writers.require_health()
            merge_until(session, lake, round_rows=20_000)
            if not readers and list_whole_cuts(lake, TABLES):
                for reader, count in reads.items():
                    readers[reader] = start_reader(reader, pipeline.folder, count, tmp_path)
    pipeline.finish(capture)
    for reader, count in reads.items():
        said = readers[reader].output()
        assert readers[reader].wait() == 0, said
        found = json.loads(said.splitlines()[-1])
        print(reader, found)  # noqa: T201 - `pytest -s` shows it.
        assert (found["reads"], found["broken"]) == (count, [])
        assert found["places"] > 1


@contextmanager
def selling(writers: Writers) -> Iterator[None]:
    """Let the writers work while a block runs."""
    writers.start()
    try:
        yield
    finally:
        writers.stop()


@contextmanager
def ending(readers: dict[str, ChildProcess]) -> Iterator[None]:
    """Kill the readers that still run after a block."""
    try:
        yield
    finally:
        for reader in readers.values():
            if reader.is_running:
                reader.kill()


def start_reader(reader: str, folder: Path, count: int, logs: Path) -> ChildProcess:
    return ChildProcess(
        [sys.executable, "-m", "tests.end_to_end.shop_reader", reader, folder, str(count)],
        log=logs / f"{reader}.log",
        environment=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
