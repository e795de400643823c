"""Verification at one LSN: under load, and where the next record is a commit at exactly it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import load_settings
from cdc_core.source.snapshots import SourceSnapshot, open_snapshot
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.leases import holding_lease
from spark_jobs.query.as_of import table_at
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.lakes import path_of
from tests.postgres_server import Database
from tests.verify.verifying import Verifying, make_verifying, require_equal

TABLE = TableName("public", "hot")
MAX_ATTEMPTS = 5
UPSERT = """
insert into hot values (%(k)s, 0, 'new') on conflict (id) do update set n = hot.n + 1
"""
UPDATE = "update hot set n = n + 1, note = repeat('x', n %% 50) where id = %(k)s"
WRITES = [UPSERT, UPDATE, "delete from hot where id = %(k)s"]
WAITED_FOR = """
select pg_blocking_pids(pid) from pg_stat_activity
where application_name = 'walgate verify' and backend_type = 'walsender' and datname = %s
"""


@contextmanager
def writing(database: Database, seed: int) -> Iterator[None]:
    """Write to the table as fast as it goes until the block ends."""
    stop, failures = threading.Event(), []

    def write(number: int) -> None:
        rng = random.Random(seed + number)
        try:
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                while not stop.is_set():
                    key = rng.randrange(1000) * 2 + number
                    connection.execute(rng.choice(WRITES), {"k": key})
        except psycopg.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_table_is_equal_at_the_lsn_of_the_snapshot_while_it_is_written_to(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    database18.execute("create table hot (id int primary key, n int, note text)")
    lent = make_verifying(make_pipeline, database18, spark)
    seed = random.randrange(1 << 30)
    print("seed", seed)  # noqa: T201 - to run it again.
    capture = lent.pipeline.start_streaming()
    with writing(database18, seed):
        first = lent.compare("hot")
        second = lent.compare("hot")
    for found in (first, second):
        require_equal(found)
    assert first.bound < second.bound
    assert first.tables[0].source != second.tables[0].source
    lent.pipeline.finish(capture)


def wait_until_waited_for(database: Database, pid: int) -> None:
    """Wait until the making of a snapshot waits for a session's transaction."""

    def is_waited_for() -> bool:
        rows = database.query(WAITED_FOR, [database.name])
        return any(pid in blockers for (blockers,) in rows)

    wait_for(is_waited_for, DEADLINE_S, "the snapshot to wait for a transaction")


@dataclass
class Looked:
    """A snapshot's LSN and rows, and how many rows were committed before it was asked for."""

    lsn: int
    seen: set[int]
    before: int


def look_between_commits(lent: Verifying, before: int) -> Looked:
    """Take a snapshot that waits for two writers; the next record should be a third's commit."""
    database, source = lent.pipeline.database, lent.settings.source
    with ExitStack() as stack:
        writers = [stack.enter_context(psycopg.connect(database.dsn)) for _ in range(3)]
        writers[0].execute("insert into hot values (%s)", [before])
        opened: list[SourceSnapshot] = []
        ready, done = threading.Event(), threading.Event()

        def open_one() -> None:
            stop = threading.Event()
            with open_snapshot(
                source, [TABLE], find_history=lambda: None, patience_s=DEADLINE_S, stop=stop
            ) as snapshot:
                opened.append(snapshot)
                ready.set()
                done.wait(DEADLINE_S)

        opener = threading.Thread(target=open_one)
        opener.start()
        stack.callback(opener.join)
        stack.callback(done.set)
        # Each commit lets the making go on to the next that was open by then; the last one began
        # too late to be waited for.
        for number in (1, 2):
            wait_until_waited_for(database, writers[number - 1].info.backend_pid)
            writers[number].execute("insert into hot values (%s)", [before + number])
            writers[number - 1].commit()
        assert ready.wait(DEADLINE_S)
        writers[2].commit()
        lent.pipeline.catch_up()
        (snapshot,) = opened
        seen = {row[0] for row in snapshot.connection.execute("select id from hot").fetchall()}
        return Looked(int(snapshot.lsn), seen, before)


def test_a_commit_at_exactly_the_lsn_of_a_snapshot_is_not_in_it(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    database18.execute("create table hot (id int primary key)")
    lent = make_verifying(make_pipeline, database18, spark)
    log = lent.lake.changes
    # A record of the server's own may come between.
    for attempt in range(MAX_ATTEMPTS):
        looked = look_between_commits(lent, 3 * attempt)
        commits = DeltaTable(path_of(log)).to_pyarrow_table(columns=["commit_lsn"])["commit_lsn"]
        if looked.lsn in commits.to_pylist():
            break
    else:
        pytest.fail("the history did not come about")
    bound = Bound(1, Lsn(looked.lsn))
    with holding_lease(lent.lake, bound) as lease:
        reading = table_at(lent.session, lent.lake, TABLE, bound, lease_of_newest=lease)
        rows = {row[0] for row in reading.rows.select("id").collect()}
    assert rows == looked.seen == set(range(looked.before + 2))
    assert not database18.query("select 1 from pg_replication_slots where temporary")


def test_a_snapshot_names_the_transaction_that_it_waits_for(
    database18: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    database18.execute("create table hot (id int primary key)")
    pipeline = make_pipeline(database18)
    source = load_settings(pipeline.folder / "walgate.toml", {}).source
    with psycopg.connect(database18.dsn, application_name="forgotten") as writer:
        writer.execute("insert into hot values (0)")
        with (
            pytest.raises(SourceError, match="no snapshot of the source within 1 s") as raised,
            open_snapshot(
                source, [TABLE], find_history=lambda: None, patience_s=1.0, stop=threading.Event()
            ),
        ):
            pass
        pid = writer.info.backend_pid
    assert f"PID {pid} (forgotten, idle in transaction, open for" in raised.value.message
    assert raised.value.retry is Retry.LATER
    assert not database18.query("select 1 from pg_replication_slots where temporary")


def test_no_table_is_rewritten_while_a_snapshot_of_it_is_open(
    database18: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    database18.execute("create table hot (id int primary key)")
    database18.execute("insert into hot values (1)")
    pipeline = make_pipeline(database18)
    source = load_settings(pipeline.folder / "walgate.toml", {}).source
    rewrites = ("alter table hot alter id type bigint", "truncate hot")
    stop = threading.Event()
    with (
        open_snapshot(
            source, [TABLE], find_history=lambda: None, patience_s=DEADLINE_S, stop=stop
        ) as snapshot,
        psycopg.connect(database18.dsn, autocommit=True) as connection,
    ):
        connection.execute("set lock_timeout = 50")
        for rewrite in rewrites:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute(rewrite.encode())
        connection.execute("insert into hot values (2)")
        assert snapshot.connection.execute("select id from hot").fetchall() == [(1,)]
        assert not database18.query("select 1 from pg_replication_slots where temporary")
    for rewrite in rewrites:
        database18.execute(rewrite)
