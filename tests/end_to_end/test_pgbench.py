"""pgbench, replicated while it runs: the tables equal the source, its sums agree at every LSN."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from cdc_core.read_point import ReadPoint
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.query.sql import answer_query
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.end_to_end.pgbench_tables import KEYS, read_lake, read_source, run_pgbench, start_load
from tests.fix_redis import RedisServer
from tests.lakes import locate_lake
from tests.postgres_server import Database

# Every transaction of TPC-B adds one delta to an account, a teller and a branch.
BALANCES = """
select (select sum(abalance) from pgbench_accounts),
       (select sum(tbalance) from pgbench_tellers),
       (select sum(bbalance) from pgbench_branches),
       (select count(*) from pgbench_accounts)
"""


@pytest.fixture
def walgate(tmp_path: Path, redis_server: RedisServer) -> Iterator[Callable[..., ChildProcess]]:
    """Start `walgate` commands for a database."""
    configuration = tmp_path / "walgate.toml"
    started: list[ChildProcess] = []

    def start(database: Database, *arguments: str) -> ChildProcess:
        configuration.write_text(
            f'[source]\ndsn = "{database.dsn}"\n[lake]\nroot = "lake"\n'
            f'[redis]\nurl = "{redis_server.url}"\n[capture]\nbatch_seconds = 0.3\n'
        )
        command = [sys.executable, "-m", "orchestration.cli.main", "--config", str(configuration)]
        child = ChildProcess([*command, *arguments], log=tmp_path / f"{len(started)}.log")
        started.append(child)
        return child

    yield start
    for child in started:
        if child.is_running:
            child.stop()


def _check_pgbench(
    database: Database,
    walgate: Callable[..., ChildProcess],
    spark: SparkSession,
    tmp_path: Path,
    *,
    scale: int,
    seconds: int,
) -> None:
    lake = Lake(locate_lake(tmp_path / "lake"))
    session = spark.newSession()
    run_pgbench(database, "-i", "-I", "dtp", "-q")
    database.execute(f"create publication walgate for table {', '.join(KEYS)}")
    database.execute("select pg_create_logical_replication_slot('walgate', 'pgoutput')")
    capture = walgate(database, "replicate")
    run_pgbench(database, "-i", "-I", "g", "-q", "-s", str(scale))
    first = tmp_path / "lake/staging/changes/_delta_log" / f"{1:020}.json"
    wait_for(lambda: first.exists() or not capture.is_running, 60, "the first commit")
    looks: dict[ReadPoint, int] = {"latest": 0, "live": 0}
    while min(looks.values()) < 2:
        load = start_load(database, seconds)
        while load.poll() is None:
            merge_until(session, lake, round_rows=2_000_000)
            for at in looks:
                looks[at] += _count_balanced(session, lake, at)
        assert load.returncode == 0
    assert capture.stop() == 0, capture.output()
    last = walgate(database, "replicate", "--until-current")
    assert last.wait() == 0, last.output()
    rounds = merge_until(session, lake, round_rows=2_000_000)
    assert not rounds[-1].halted
    assert _count_balanced(session, lake, "latest")
    for table, key in KEYS.items():
        assert read_lake(session, lake, table, key).equals(read_source(database, table, key))


def _count_balanced(session: SparkSession, lake: Lake, at: ReadPoint) -> int:
    """Check the sums at one LSN; 0 where not all three tables had a change by then."""
    bound = find_bound_at(lake, at)
    try:
        rows = answer_query(session, lake, BALANCES, bound).rows.collect()
    except (AnalysisException, LakeError):  # A table has no change by then.
        return 0
    accounts, tellers, branches, count = rows[0]
    if not count:
        return 0
    assert accounts == tellers == branches, (at, bound)
    return 1


@pytest.mark.soak
def test_pgbench_tables_equal_the_source_and_balance_at_every_cut(
    database18: Database,
    walgate: Callable[..., ChildProcess],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    _check_pgbench(database18, walgate, spark, tmp_path, scale=1, seconds=5)


@pytest.mark.soak
def test_pgbench_at_scale_ten_for_a_minute(
    database: Database,
    walgate: Callable[..., ChildProcess],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    _check_pgbench(database, walgate, spark, tmp_path, scale=10, seconds=60)
