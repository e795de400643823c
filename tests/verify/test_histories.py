"""On a real server under load, a history equals an audit by triggers, and the source at snapshots.

The audit knows the transaction of each change. The log says which LSN that transaction ends at.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from cdc_core.source.snapshots import open_snapshot
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, TableName
from orchestration.backfill.backfill import run_backfills
from spark_jobs.lake.lake import Bound
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.as_of import table_at
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.lakes import path_of
from tests.postgres_server import Database
from tests.verify.verifying import Verifying, make_verifying, read_results, require_equal

NAMES = ("plain", "whole")
TABLES = {name: TableName("public", name) for name in NAMES}
SCHEMA = """
create table plain (k int primary key, v text, big text);
alter table plain alter column big set storage external;
create table whole (k int primary key deferrable initially deferred, v text, big text);
alter table whole alter column big set storage external;
alter table whole replica identity full;
create table audit (n bigserial primary key, xid bigint default txid_current() % 4294967296,
    relation text, op text, old_k int, k int, v text, big text);
create function note() returns trigger language plpgsql as $$ begin
    if tg_op = 'TRUNCATE' then
        insert into audit (relation, op) values (tg_table_name, tg_op);
    elsif tg_op = 'DELETE' then
        insert into audit (relation, op, old_k) values (tg_table_name, tg_op, old.k);
    elsif tg_op = 'INSERT' then
        insert into audit (relation, op, k, v, big)
            values (tg_table_name, tg_op, new.k, new.v, new.big);
    else
        insert into audit (relation, op, old_k, k, v, big)
            values (tg_table_name, tg_op, old.k, new.k, new.v, new.big);
    end if;
    return null;
end $$;
"""
TRIGGERS = """
create trigger noted after insert or update or delete on {0} for each row execute function note();
create trigger emptied after truncate on {0} execute function note();
"""
BIG = "repeat(md5(random()::text), 200)"
KEYS = 60
Version = tuple[int, str | None, str | None, int, int | None]


def draw_statement(rng: random.Random, table: str) -> str:
    """A statement that leaves every key unique, whatever others do at once."""
    k, other = rng.randrange(KEYS), rng.randrange(KEYS)
    big = BIG if rng.random() < 0.5 else "'small'"
    insert = f"insert into {table} values ({k}, 'new', {big})"
    statements = [
        *(f"{insert} on conflict do nothing" if table == "plain" else
          f"{insert[:-1]}) returning k" for _ in range(2)),
        f"update {table} set v = md5(random()::text) where k = {k}",
        f"update {table} set v = md5(random()::text) where k between {k} and {k + 5}",
        f"update {table} set big = {big} where k = {k}",
        f"delete from {table} where k = {k}",
        f"update {table} set k = {KEYS} + {other} where k = {k}",
        f"update {table} set k = k - {KEYS} where k = {KEYS} + {other}",
    ]  # fmt: skip
    if table == "whole":
        # Keys may meet inside a transaction.
        statements.append(f"update {table} set k = case k when {k} then {other} else {k} end"
                          f" where k in ({k}, {other})")  # fmt: skip
    if rng.random() < 0.01:
        return f"truncate {table}"
    return rng.choice(statements)


@contextmanager
def writing(database: Database, seed: int, *, writers: int = 3) -> Iterator[None]:
    """Write random transactions until the block ends; those that fail leave nothing."""
    stop, failures = threading.Event(), []

    def write(number: int) -> None:
        rng = random.Random(seed + number)
        try:
            with psycopg.connect(database.dsn) as connection:
                connection.execute("set lock_timeout = '1s'")
                connection.commit()
                while not stop.is_set():
                    take_transaction(connection, rng)
        except Exception as error:  # noqa: BLE001 - The test shows it.
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def take_transaction(connection: psycopg.Connection, rng: random.Random) -> None:
    try:
        for _ in range(rng.randint(1, 4)):
            connection.execute(draw_statement(rng, rng.choice(NAMES)))
        connection.commit()
    except (psycopg.errors.IntegrityError, psycopg.errors.OperationalError):
        connection.rollback()  # A key that exists, a deadlock, or a long wait.


@dataclass
class Snapshot:
    """The rows of the tables at an LSN."""

    lsn: int
    rows: dict[str, set[tuple[int, str | None, str | None]]]


def take_snapshot(lent: Verifying) -> Snapshot:
    with open_snapshot(
        lent.settings.source, [*TABLES.values()], find_history=lambda: None,
        patience_s=DEADLINE_S, stop=threading.Event(),
    ) as snapshot:  # fmt: skip
        rows = {
            name: {*snapshot.connection.execute(f"select k, v, big from {name}").fetchall()}
            for name in NAMES
        }
        return Snapshot(int(snapshot.lsn), rows)


def read_ends(lent: Verifying) -> dict[int, int]:
    """The end LSN of each transaction of the log."""
    log = DeltaTable(path_of(lent.lake.changes)).to_pyarrow_table(columns=["xid", "end_lsn", "op"])
    rows = [row for row in log.to_pylist() if row["op"] != "read"]
    return {row["xid"]: row["end_lsn"] for row in rows if row["xid"] is not None}


def read_audit(database: Database, ends: dict[int, int], table: str) -> set[Version]:
    """The versions of a table, as its audit tells them."""
    noted = database.query(
        "select xid, op, old_k, k, v, big from audit where relation = %s order by n", [table]
    )
    by_transaction: dict[int, list[Any]] = {}
    for xid, *row in noted:
        by_transaction.setdefault(ends[xid], []).append(row)
    open_ones: dict[int, Version] = {}
    versions: set[Version] = set()
    for end, rows in sorted(by_transaction.items()):
        # For each key the rows that it has, oldest first. A key may have two for a while.
        states: dict[int, list[Version]] = {k: [one] for k, one in open_ones.items()}
        for op, old_k, k, v, big in rows:
            if op == "TRUNCATE":
                states.clear()
                continue
            if op != "INSERT":
                states[old_k].pop(0)
            if op != "DELETE":
                states.setdefault(k, []).append((k, v, big, end, None))
        left = {k: ones[-1] for k, ones in states.items() if ones}
        versions |= {(*one[:4], end) for k, one in open_ones.items() if left.get(k) is not one}
        open_ones = left
    return versions | {*open_ones.values()}


def read_versions(rows: DataFrame) -> set[Version]:
    found = rows.select("k", "v", "big", "_from_lsn", "_to_lsn", "_holes").collect()
    assert not any(row["_holes"] for row in found)
    return {(row[0], row[1], row[2], row[3], row[4]) for row in found}


def slice_rows(rows: DataFrame, lsn: int) -> set[tuple[int, str | None, str | None]]:
    valid = rows.where(f"_from_lsn <= {lsn} and (_to_lsn is null or _to_lsn > {lsn})")
    return {tuple(row) for row in valid.select("k", "v", "big").collect()}


def make_world(
    make_pipeline: Callable[..., Pipeline], database: Database, spark: SparkSession
) -> Verifying:
    database.execute(SCHEMA)
    for name in NAMES:
        database.execute(TRIGGERS.format(name))
    lent = make_verifying(make_pipeline, database, spark)
    database.execute("drop publication walgate")
    database.execute("create publication walgate for table plain, whole")
    lent.pipeline.make_slot_again()
    with (lent.pipeline.folder / "walgate.toml").open("a") as file:
        file.write('\n[tables."public.*"]\nmodes = ["soft_delete", "history"]\n')
    lent.lake = type(lent.lake).of(lent.settings)
    return lent


def backfill(lent: Verifying) -> None:
    stop = threading.Event()
    run_backfills(lent.settings, TABLES.values(), chunk_rows=20, parallel=1, stop=stop)


def merge(lent: Verifying) -> None:
    """Merge what is staged; capture goes on."""
    merge_until(lent.session, lent.lake, round_rows=1_000_000)


def read_history(lent: Verifying, table: TableName) -> DataFrame:
    folder = lent.lake.locate_target(Target(table, TargetKind.HISTORY))
    return lent.session.read.format("delta").load(folder.uri)


@pytest.mark.parametrize(
    ("seed", "snapshots"),
    [
        pytest.param(20261130, 5, marks=pytest.mark.timeout(900)),
        *(
            pytest.param(seed, 25, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])
            for seed in range(4)
        ),
    ],
)
def test_a_history_equals_the_audit_and_the_snapshots_of_its_source(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    seed: int,
    snapshots: int,
) -> None:
    print(f"seed {seed}")  # noqa: T201 - to run it again.
    lent = make_world(make_pipeline, database18, spark)
    capture = lent.pipeline.start_streaming()
    taken: list[Snapshot] = []
    for part in range(snapshots):
        with writing(database18, seed + 10 * part):
            taken.append(take_snapshot(lent))
        if part % 3 == 1:
            backfill(lent)
        lent.pipeline.wait_until_staged(lent.pipeline.current_lsn())
        merge(lent)
    lent.pipeline.finish(capture)
    lent.merge()
    ends = read_ends(lent)
    for name, table in TABLES.items():
        history = read_history(lent, table)
        assert read_versions(history) == read_audit(database18, ends, name), name
        for one in taken:
            at = Bound(1, Lsn(one.lsn))
            assert slice_rows(history, one.lsn) == one.rows[name], (name, one.lsn)
            rows = table_at(lent.session, lent.lake, table, at).rows
            found = {tuple(row) for row in rows.select("k", "v", "big").collect()}
            assert found == one.rows[name], (name, one.lsn)
            stored = table_at(lent.session, lent.lake, table, at, as_stored=True).rows
            present = stored.where("not _deleted").select("k", "v", "big").collect()
            assert {tuple(row) for row in present} == one.rows[name], (name, one.lsn)


def test_a_damaged_history_is_found_and_healed(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    lent = make_world(make_pipeline, database18, spark)
    database18.execute("insert into plain select n, 'v', 'b' from generate_series(1, 30) n")
    capture = lent.pipeline.start_streaming()
    backfill(lent)
    merge(lent)
    require_equal(lent.compare())
    folder = path_of(lent.lake.locate_target(Target(TABLES["plain"], TargetKind.HISTORY)))
    history = DeltaTable(folder)
    history.update(updates={"v": "'other'"}, predicate="k = 7")
    history.delete("k = 9")
    found = lent.compare("plain")
    assert read_results(found.tables) == {
        "plain": "different: the open versions in history/public.plain differ"
    }
    assert found.keys == {TABLES["plain"]: frozenset({("7",), ("9",)})}
    healed = lent.heal("plain")
    assert [(one.result, one.healed) for one in healed.tables] == [("equal", True)]
    merge(lent)
    versions = read_history(lent, TABLES["plain"]).where("k in (7, 9)").orderBy("k", "_from_lsn")
    listed = versions.select("k", "v", "_opened_by", "_closed_by").collect()
    assert [tuple(row) for row in listed] == [
        (7, "other", "insert", "read"), (7, "v", "read", None), (9, "v", "read", None),
    ]  # fmt: skip
    lent.pipeline.finish(capture)
