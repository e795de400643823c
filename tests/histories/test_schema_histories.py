"""Histories of columns and keys from a real server to the lake, in one pipeline.

A history that needs rows to be read again halts its table, while the log and all other tables go
on; the backfill that is queued for it begins the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.completeness import Incomplete, read_completeness
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import read_states
from spark_jobs.merge.rounds import merge_until
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.postgres_server import Database, PostgresServer
from tests.walgate_command import run_walgate

HALTED = ("h10", "h10_no_default", "h11", "h11_unseen")
BIG = "md5(i::text) || repeat('big', 2000)"

# Rows that were there before the slot, and are in no log.
UNREAD = f"""
create table h22 (id int primary key, v text, big text);
alter table h22 alter big set storage external;
insert into h22 select i, 'unread', {BIG} from generate_series(1, 3) i
"""
FIRST = f"""
create table h10 (id int primary key, v text);
create table h10_kept (id int primary key, v text);
create table h10_no_default (id int primary key, v text);
create table h11 (id int primary key, d text);
create table h11_unseen (id int primary key, d text);
create table h16 (d date, n numeric, f float8, v text, primary key (d, n, f));
create table h21 (id int primary key deferrable, v text);
alter table h21 replica identity full;
insert into h10 values (1, 'a'), (2, 'b');
insert into h10_kept values (1, 'a'), (2, 'b');
insert into h10_no_default values (1, 'a'), (2, 'b');
insert into h11 values (1, 'old');
insert into h11_unseen values (1, 'old');
alter table h11_unseen drop d;
alter table h11_unseen add d text;
insert into h11_unseen values (2, 'new');
insert into h16 select d, n, f, 'first'
  from unnest('{{infinity,-infinity,2024-01-01,0044-03-15 BC}}'::date[]) d,
       unnest('{{NaN,1.0}}'::numeric[]) n, unnest('{{NaN,-Infinity,0}}'::float8[]) f;
insert into h21 select i, 'row ' || i from generate_series(1, 3) i;
update h21 set id = 4 - id;
insert into h22 select i, 'read', {BIG} from generate_series(11, 13) i
"""
SECOND = """
alter table h10 add d int default 7;
alter table h10 alter d type bigint using d * 100;
insert into h10 values (3, 'c', 5);
alter table h10_kept add d int default 7;
alter table h10_kept alter d drop default;
insert into h10_kept values (3, 'c', 5);
alter table h10_no_default add d int default 7;
alter table h10_no_default alter d type bigint using d * 100;
alter table h10_no_default alter d drop default;
insert into h10_no_default values (3, 'c', 5);
alter table h11 drop d;
alter table h11 add d text;
insert into h11 values (2, 'new');
update h16 set v = 'second' where d in ('infinity', '2024-01-01');
update h16 set n = 1.00 where n = 1.0 and f = 0;
update h16 set f = '-0', v = 'minus' where f = 0 and d = '-infinity';
delete from h16 where d = '0044-03-15 BC' and n = 'NaN';
insert into h16 values ('infinity', 2, 'NaN', 'new');
update h21 set id = id - 1;
update h22 set id = id + 100, v = 'moved'
"""
THIRD = """
insert into h10 values (4, 'd', 6);
insert into h10_kept values (4, 'd', 6);
insert into h11 values (3, 'newer');
update h22 set big = 'sent' where id = 101;
update h22 set id = 300 where id = 103;
update h22 set v = 'again' where id in (102, 113)
"""


@dataclass
class World:
    """A source with its lake, before and after the last step."""

    database: Database
    pipeline: Pipeline
    spark: SparkSession
    lake: Lake

    def happen(self, steps: str) -> None:
        """Run statements, each by itself; stage and merge all."""
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            for step in steps.split(";"):
                connection.execute(step.encode())
        self.pipeline.catch_up()
        merge_until(self.spark, self.lake, round_rows=1_000_000)

    def held(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of the lake's table."""
        path = str(self.lake.root / "tables" / "public" / table)
        frame = self.spark.read.format("delta").load(path)
        return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)

    def truth(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of the source's table."""
        return sorted(self.database.query(f"select {', '.join(columns)} from {table}"), key=repr)

    def halt_of(self, table: str) -> str | None:
        """Why a table is halted, if it is."""
        state = read_states(self.lake)[f"public.{table}"]
        return state.reason if state.state == "halted" else None

    def lack_of(self, table: str) -> Incomplete | None:
        """Why a table may lack rows, if it may."""
        return read_completeness(self.lake).find_incomplete(f"public.{table}")


@pytest.fixture(scope="module", params=[pytest.param(15, marks=pytest.mark.soak), 18])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[World]:
    """Lend the world after all steps; every history has its own table in it."""
    server: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    folder: Path = tmp_path_factory.mktemp("histories")
    with lend_database(server) as database:
        for statement in UNREAD.split(";"):
            database.execute(statement)
        pipeline = Pipeline(database, folder)
        world = World(
            database,
            pipeline,
            spark.newSession(),
            Lake(pipeline.lake),
        )
        world.happen(FIRST)
        world.happen(SECOND)
        world.happen(THIRD)
        yield world
        pipeline.end()


def test_history_10_a_rewrite_that_filled_a_new_column_halts_its_table(world: World) -> None:
    assert world.truth("h10", "id", "d") == [(1, 700), (2, 700), (3, 5), (4, 6)]
    for table in ("h10", "h10_no_default"):
        reason = world.halt_of(table)
        assert reason is not None
        assert "the values of new column d in older rows are unknown" in reason
        assert world.held(table, "id", "v") == [(1, "a"), (2, "b")], "as before the column came"


def test_history_10_missing_values_of_the_catalog_are_those_of_older_rows(world: World) -> None:
    assert world.halt_of("h10_kept") is None
    rows = world.held("h10_kept", "id", "v", "d")
    assert rows == world.truth("h10_kept", "id", "v", "d")
    assert rows[0] == (1, "a", 7)


def test_history_11_a_column_dropped_and_added_again_halts_its_table(world: World) -> None:
    assert world.truth("h11", "id", "d") == [(1, None), (2, "new"), (3, "newer")]
    assert world.halt_of("h11") == "column d was dropped and added again"
    assert world.held("h11", "id", "d") == [(1, "old")]


def test_history_11_a_column_exchanged_before_it_was_ever_seen_halts_as_well(world: World) -> None:
    assert world.halt_of("h11_unseen") == "column d was renamed or dropped since it was announced"
    assert world.held("h11_unseen", "id", "d") == [(1, "old")]


def test_history_16_rows_with_keys_that_no_type_holds_do_not_multiply(world: World) -> None:
    assert world.halt_of("h16") is None
    keys = world.held("h16", "_key", "v")
    assert len({key for key, _ in keys}) == len(keys)
    truth = world.truth("h16", "d::text", "n::text", "f::text", "v")
    assert sorted(([*json.loads(key), v] for key, v in keys), key=repr) == sorted(
        ([*row] for row in truth), key=repr
    )
    assert len(keys) == 22
    raws = [raw or {} for (raw,) in world.held("h16", "_raw")]
    assert {"infinity", "-infinity", "0044-03-15 BC", None} == {raw.get("d") for raw in raws}
    assert {"NaN", "1.0", "1.00", None} == {raw.get("n") for raw in raws}


def test_history_21_keys_that_shift_and_swap_in_a_statement_keep_every_row(world: World) -> None:
    assert world.halt_of("h21") is None
    # Each key but the last departs after it arrived; no later change would heal a wrong row.
    rows = world.held("h21", "id", "v")
    assert rows == world.truth("h21", "id", "v") == [(0, "row 3"), (1, "row 2"), (2, "row 1")]


def test_history_22_a_value_never_sent_is_a_named_hole_until_it_is_sent(world: World) -> None:
    assert world.halt_of("h22") is None
    rows = {row[0]: row[1:] for row in world.held("h22", "id", "v", "big", "_holes")}
    truth = {row[0]: row[1:] for row in world.truth("h22", "id", "v", "big")}
    assert rows.keys() == truth.keys() == {101, 102, 300, 111, 112, 113}
    assert {key: holes for key, (_, _, holes) in rows.items() if holes} == {
        102: ["big"],
        300: ["big"],
    }
    for key, (v, big, holes) in rows.items():
        assert (v, None if holes else truth[key][1]) == (truth[key][0], big), key


def test_the_log_and_status_go_on_beside_halted_tables(world: World) -> None:
    world.pipeline.require_truth()
    answer = run_walgate("status", "--json", folder=world.pipeline.folder)
    assert answer.exit_code == 0
    status = json.loads(answer.stdout)
    halted = {p["what"].split()[0] for p in status["problems"] if p["code"] == "table_halted"}
    assert halted == {f"public.{name}" for name in HALTED}
    queued = {table["table"]: table for table in status["tables"] if table["state"] == "queued"}
    assert halted <= queued.keys()
    assert queued["public.h11"]["reason"] == "column d was dropped and added again"
    lossy = {table["table"]: table["lossy"] for table in status["tables"]}
    assert lossy["public.h16"] == sum(
        (d in {"infinity", "-infinity", "0044-03-15 BC"}) + (n == "NaN")
        for d, n in world.truth("h16", "d::text", "n::text")
    )
    assert lossy["public.h21"] == 0


def test_histories_10_and_11_end_as_their_sources_once_they_were_read_again(world: World) -> None:
    names = [f"public.{name}" for name in HALTED]
    answer = run_walgate("backfill", *names, folder=world.pipeline.folder)
    assert answer.exit_code == 0, answer
    world.happen("insert into h10 values (5, 'e', 7); insert into h11 values (4, 'newest')")
    for table in HALTED:
        assert world.halt_of(table) is None
        assert world.lack_of(table) is None
        columns = ("id", "d") if table.startswith("h11") else ("id", "v", "d")
        assert world.held(table, *columns) == world.truth(table, *columns)
    assert world.held("h10", "id", "d") == [(1, 700), (2, 700), (3, 5), (4, 6), (5, 7)]
    assert world.held("h11", "id", "d")[0] == (1, None)
    # The value that was never sent comes with another copy.
    assert world.lack_of("h22") is not None
