"""About a thousand changes a second over eight tables, for ten minutes, through a whole deployment.

The ages of the changes are properties of the test, which `--junitxml` writes. The test does not
judge them: a machine may be busy.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import psycopg
import pytest
from deltalake import DeltaTable

from orchestration.status.freshness import measure_freshness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.log.backlog import Backlog, read_backlog
from tests.deadline import wait_for
from tests.fix_dagster import RunningDagster
from tests.fix_pipeline import Pipeline
from tests.fix_redis import RedisServer
from tests.postgres_server import Database

MINUTES = 10.0
# Up to ten changes in each of two tables, so about 1,000 a second.
TRANSACTIONS_S = 50.0
DEADLINE_S = 600.0
SIZES = (300_000, 100_000, 50_000, 20_000, 10_000, 5_000, 1_000, 200)
# Five of six updates are among this many last rows of the first copy.
NEWEST = 5_000
TABLE = """
    create table t{number} (id bigint primary key, n int, note text, at timestamptz);
    create sequence ids_{number} start {after};
    insert into t{number} select i, 0, md5(i::text), now() from generate_series(1, {size}) i;
"""
CHANGES = """
    with updated as (
        update t{number} set n = n + 1, at = clock_timestamp() where id = any(%(updated)s)
    ), deleted as (delete from t{number} where id = %(deleted)s)
    insert into t{number} select nextval('ids_{number}'), 0, md5(random()::text), now()
    from generate_series(1, 3)
"""
ROWS = "select id, n, note, at from t{number} order by id"


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 4 * DEADLINE_S)
def test_tables_keep_up_with_a_thousand_changes_a_second(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    start_dagster_on: Callable[..., RunningDagster],
    redis_process: RedisServer,
    record_property: Callable[[str, object], None],
) -> None:
    for number, size in enumerate(SIZES):
        database18.execute(TABLE.format(number=number, size=size, after=size + 1))
    pipeline = make_pipeline(database18, redis=redis_process.url)
    lake = Lake.of(pipeline.load_settings())
    dagster = start_dagster_on(
        pipeline, WALGATE_BACKFILL__AUTOMATIC="true", WALGATE_CAPTURE__BATCH_SECONDS="1"
    )
    dagster.wait_until_ready()

    def look(is_reached: Callable[[Backlog], bool]) -> Bound | None:
        backlog = read_backlog(lake)
        return backlog.cut if is_reached(backlog) else None

    def is_whole(backlog: Backlog) -> bool:
        counts = [count_rows(pipeline, number) for number in range(len(SIZES))]
        return backlog.cut is not None and counts == [*SIZES]

    whole = wait_for(lambda: look(is_whole), DEADLINE_S, "the first copy of all tables")
    with writing(database18.dsn) as count:
        wait_for(lambda: count() >= 60 * MINUTES * TRANSACTIONS_S, 120 * MINUTES, "the writer")
    end = pipeline.current_lsn()
    database18.execute("insert into t7 values (0, 0, 'the last', now())")

    def is_merged(backlog: Backlog) -> bool:
        staged = backlog.staged
        return staged is not None and staged.lsn >= end and not backlog.entries

    wait_for(lambda: look(is_merged), DEADLINE_S, "the last change to be merged")
    for number in range(len(SIZES)):
        assert read_lake(pipeline, number) == database18.query(ROWS.format(number=number))
    fresh = measure_freshness(lake, whole)
    for name, delay in (("live", fresh.live), ("tables", fresh.tables)):
        assert delay is not None
        assert delay.transactions >= 60 * MINUTES * TRANSACTIONS_S
        record_property(name, asdict(delay))
    assert dagster.finish() == 0, dagster.describe()


@contextmanager
def writing(dsn: str) -> Iterator[Callable[[], int]]:
    """Change tables while a block runs; lend how many transactions there were so far."""
    over = threading.Event()
    done = 0
    failure: BaseException | None = None

    def write() -> None:
        nonlocal done, failure
        chance, due = random.Random(1), time.monotonic()
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not over.wait(max(0.0, due - time.monotonic())):
                    due += 1 / TRANSACTIONS_S
                    with connection.transaction():
                        for number in chance.sample(range(len(SIZES)), 2):
                            change(connection, chance, number)
                    done += 1
        except BaseException as error:  # noqa: BLE001 - The main thread raises it.
            failure = error

    def count() -> int:
        if failure is not None:
            raise failure
        return done

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        over.set()
        thread.join()


def change(connection: psycopg.Connection, chance: random.Random, number: int) -> None:
    """Update up to six rows of a table, delete at most one and insert three."""
    size = SIZES[number]
    keys = [chance.randint(max(1, size - NEWEST), size) for _ in range(5)]
    keys.append(chance.randint(1, size))
    connection.execute(
        CHANGES.format(number=number).encode(),
        {"updated": keys, "deleted": size + chance.randint(1, NEWEST)},
    )


def count_rows(pipeline: Pipeline, number: int) -> int:
    """The rows of a table of the lake; 0 if it does not exist yet."""
    path = str(pipeline.root / "tables" / "public" / f"t{number}")
    return DeltaTable(path).count() if DeltaTable.is_deltatable(path) else 0


def read_lake(pipeline: Pipeline, number: int) -> list[tuple[object, ...]]:
    """The rows of a table of the lake, sorted."""
    path = pipeline.root / "tables" / "public" / f"t{number}"
    rows = DeltaTable(path).to_pyarrow_table(columns=["id", "n", "note", "at"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)
