"""Spark drivers and delta-rs commit to one table of an object store at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.object_place import ObjectPlace
from spark_jobs.session.store_jar import LOG_STORE
from tests.fix_spark import find_java
from tests.lakes import CREDENTIALS
from tests.walgate_command import REPOSITORY

DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"


@contextmanager
def running_driver(
    table: ObjectPlace, first: int, commits: int, log_store: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a driver and wait until it is ready to commit; wait for its end after the block."""
    java = find_java()
    assert java is not None
    endpoint = dict(table.store.options)["aws_endpoint"]
    arguments = [table.uri, endpoint, str(first), str(first + commits), log_store]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.object_store.driver_child", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **CREDENTIALS, "JAVA_HOME": str(java)},
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        yield driver
    assert driver.returncode == 0


def commit_from_many(table: ObjectPlace, *, drivers: int, commits: int, log_store: str) -> set[int]:
    """Let Spark drivers make so many commits each, and delta-rs at most as many beside them.

    Return the rows that were lost.
    """
    append(table, 0)
    own, children = 0, list[subprocess.Popen[str]]()
    with ExitStack() as running:
        for number in range(1, drivers + 1):
            child = running_driver(table, number * commits + 1, commits, log_store)
            driver = running.enter_context(child)
            children.append(driver)
        # All of them are ready now, so none is done before another begins.
        for driver in children:
            assert driver.stdin is not None
            driver.stdin.write("go\n")
            driver.stdin.flush()
        while any(child.poll() is None for child in children):
            # delta-rs is faster. Alone it would be done before the drivers have begun.
            others = open_delta(table).version() - own
            if own < commits and own <= others / drivers:
                own += 1
                append(table, -own)
    found = open_delta(table).to_pyarrow_table()["id"].to_pylist()
    assert len(found) == len(set(found))
    return {*range(-own, 1), *range(commits + 1, (drivers + 1) * commits + 1)} - set(found)


def list_writers(table: ObjectPlace, *, commits: int) -> list[int]:
    """Who made each commit, in their order: the number of a driver, or 0 for delta-rs."""
    writers = []
    for version in range(1, open_delta(table).version() + 1):
        actions = map(json.loads, (table / name_commit(version)).read_text().splitlines())
        (stats,) = (json.loads(one["add"]["stats"]) for one in actions if "add" in one)
        writers.append(max(0, (stats["minValues"]["id"] - 1) // commits))
    return writers


def append(table: ObjectPlace, number: int) -> None:
    rows = pa.table({"id": pa.array([number], pa.int64())})
    write_deltalake(table.uri, rows, mode="append", storage_options=table.find_options())


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_commit_of_many_writers_is_lost(object_lake: ObjectPlace) -> None:
    assert commit_from_many(object_lake / "t", drivers=2, commits=167, log_store=LOG_STORE) == set()
    writers = list_writers(object_lake / "t", commits=167)
    turns = sum(one != other for one, other in pairwise(writers))
    assert turns > 100, "the writers did not commit at the same time"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_deltas_own_class_for_s3_loses_commits(object_lake: ObjectPlace) -> None:
    """Otherwise the test above could not fail."""
    assert commit_from_many(object_lake / "t", drivers=2, commits=50, log_store=DELTAS_OWN)
