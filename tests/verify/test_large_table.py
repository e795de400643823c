"""A large table verified by the command: time, CPU of the source, three rows found and healed."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.verify.verifying import make_verifying
from tests.walgate_command import walgate_command, walgate_environment

ROWS = int(os.environ.get("WALGATE_VERIFY_ROWS", "10000000"))
DAMAGED = [ROWS // 7, ROWS // 2, ROWS - 3]
SESSIONS = "select pid from pg_stat_activity where application_name = 'walgate verify'"
FILL = """
insert into big select n, n %% 1000, n / 100.0, '2024-01-01'::timestamptz + n * interval '1 s',
    md5(n::text) from generate_series(1, %s) n
"""


@contextmanager
def measuring_source(database: Database) -> Iterator[dict[int, float]]:
    """Give the CPU seconds of the sessions of verifications, by process, while the block runs."""
    seconds: dict[int, float] = {}
    stop = threading.Event()

    def look() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            while not stop.wait(0.05):
                for (pid,) in connection.execute(SESSIONS).fetchall():
                    with suppress(psutil.NoSuchProcess):
                        times = psutil.Process(pid).cpu_times()
                        seconds[pid] = times.user + times.system

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seconds
    finally:
        stop.set()
        looking.join()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_three_rows_of_a_large_table_are_found_and_healed_in_one_command(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    database18.execute(
        "create table big (id bigint primary key, customer int, amount numeric(12,2),"
        " at timestamptz, note text)"
    )
    database18.execute(FILL, [ROWS])
    database18.execute("analyze big")
    lent = make_verifying(make_pipeline, database18, spark)
    run(lent.pipeline, "backfill", "public.big")
    lent.merge()
    with measuring_source(database18) as seconds:
        began = time.monotonic()
        (equal,) = verify(lent.pipeline, 0)
        took = time.monotonic() - began
    assert (equal["result"], equal["source"]["rows"]) == ("equal", ROWS)
    print(  # noqa: T201 - the figures are what it is run for.
        f"{ROWS:,} rows: {equal['seconds']:.1f} s compared, {took:.1f} s with the JVM's start,"
        f" {sum(seconds.values()):.1f} s of CPU on the source"
    )
    lent.damage("big", f"update {{}} set note = 'x' where id = {DAMAGED[0]}")
    lent.damage("big", f"delete from {{}} where id = {DAMAGED[1]}")
    lent.damage("big", f"update {{}} set amount = amount + 1 where id = {DAMAGED[2]}")
    began = time.monotonic()
    (healed,) = verify(lent.pipeline, 0, "--heal")
    print(f"found and healed in {time.monotonic() - began:.1f} s: {healed}")  # noqa: T201 - as above.
    assert (healed["result"], healed["healed"]) == ("equal", True)
    assert sum(found["keys"] for found in healed["ranges"]) == 3
    assert max(found["source_rows"] for found in healed["ranges"]) <= 10_000
    for key, found in zip(DAMAGED, healed["ranges"], strict=True):
        assert int(found["from"]) <= key <= int(found["to"])


def verify(pipeline: Pipeline, exit_code: int, *options: str) -> list[dict[str, Any]]:
    """Verify the table by the command; what it says of it."""
    answer = run(pipeline, "verify", "public.big", "--json", *options, exit_code=exit_code)
    tables: list[dict[str, Any]] = json.loads(answer)["tables"]
    return tables


def run(pipeline: Pipeline, *arguments: str, exit_code: int = 0) -> str:
    """Run a command, however long it takes; what it answered."""
    finished = subprocess.run(
        walgate_command(*arguments, "--config", pipeline.folder / "walgate.toml"),
        env=walgate_environment(pipeline.environment),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert finished.returncode == exit_code, finished.stdout
    return finished.stdout
