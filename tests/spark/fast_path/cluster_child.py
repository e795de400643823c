"""Plays merges in one way each and prints them: `cluster_child.py FOLDER MASTER CODE`.

CODE is the folder in which executors look for Python modules first.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_core.settings import SparkSettings
from spark_jobs.session.session import open_session
from spark_jobs.target.limits import DEFAULT_LIMITS
from spark_jobs.target.result import WritePlan
from tests.fix_cluster import CLUSTER_CONF
from tests.fix_spark import STATE_FOLDER, TEST_CONF, find_store_jars
from tests.spark.relations import Entry, delete, insert, make_relation, read, sweep, update
from tests.spark.small_lake import ALL, MERGE_ONLY, SmallLake

T = make_relation("t", "k int4, v text, n numeric")
# Spark looks for its keys by their texts, and fails at one of them.
PEOPLE = make_relation("people", "mail text, n int4", key="mail")
CANARY = "c4n4ry-of-a-key"
SEED = 20261125
# Many small files, so that a rewrite has several portions.
LIMITS = replace(
    DEFAULT_LIMITS, unshared_reads=100, small_file_bytes=0, open_file_bytes=1, driver_bytes=0
)


def play(spark: SparkSession, folder: Path) -> list[list[Any]]:
    """Merge a table in each quick way; for each round its way and the rows that it leaves."""
    rng, small = random.Random(SEED), SmallLake(spark, folder)
    rounds: list[list[Any]] = []

    def merge(entries: list[Entry]) -> None:
        (done,) = small.merge(entries, limits=LIMITS, round_rows=ALL)
        rounds.append([str(done.tables["public.t"].way), small.rows(T)])

    def make(key: int) -> list[str]:
        return [str(key), f"v{rng.random()}", f"{rng.randrange(100)}.{rng.randrange(1, 10)}"]

    merge([read(T, *make(key)) for key in range(500)])
    merge([read(T, *make(key)) for key in range(500, 1000)])
    for _ in range(3):
        keys = rng.sample(range(1000), 20)
        changed = [update(T, *make(key)) for key in keys[:15]]
        gone = [delete(T, str(key), None, None) for key in keys[15:]]
        merge([*changed, *gone, *(insert(T, *make(rng.randrange(2000, 10**9))) for _ in range(5))])
    merge([sweep(T, start=16)])
    small.merge([insert(PEOPLE, f"{CANARY}-{number}", "1") for number in range(20)])
    done = small.merge([update(PEOPLE, f"{CANARY}-7", "2")], limits=MERGE_ONLY)
    assert done[-1].tables["public.people"].way is WritePlan.MERGE, done
    people = spark.read.format("delta").load(str(small.lake.locate(PEOPLE.table)))
    with pytest.raises(PySparkException, match=CANARY):
        people.selectExpr("cast(mail as int)").collect()
    return rounds


def main(folder: Path, master: str, code: str) -> None:
    """Play in a session on a master, whose workers find this interpreter."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = SparkSettings(
        master=master,
        delta_jars=str(STATE_FOLDER / "jars"),
        driver_memory="1g",
        conf=TEST_CONF | CLUSTER_CONF | {"spark.executorEnv.PYTHONPATH": code},
    )
    rounds = play(open_session(settings, store=find_store_jars()), folder)
    print(json.dumps(rounds, default=str))  # noqa: T201 - The answer.


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
