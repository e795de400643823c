"""Partitioned tables read while partitions come and go, as one table or leaf by leaf."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cdc_core.backfill.results import BackfillProgress
from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_source
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

T = TableName("public", "t")
LEAVES = ["t_low", "t_mid_0", "t_mid_1", "t_empty", "t_gone", "t_other"]
# The key does not begin with what it is partitioned by, one partition has partitions of its own.
TABLE = """
create table t (id int, day int, v text, primary key (id, day)) partition by range (day);
create table t_low partition of t for values from (0) to (3);
create table t_mid partition of t for values from (3) to (6) partition by hash (id);
create table t_mid_0 partition of t_mid for values with (modulus 2, remainder 0);
create table t_mid_1 partition of t_mid for values with (modulus 2, remainder 1);
create table t_empty partition of t for values from (20) to (30);
create table t_gone partition of t for values from (6) to (8);
create table t_other partition of t default;
create table newcomer (id int not null, day int not null, v text, primary key (id, day));
insert into newcomer select i, 40, 'came with it' from generate_series(801, 850) i;
insert into t select i, i % 10, 'old' from generate_series(1, 120) i;
"""


def make_table(database: Database) -> None:
    for statement in TABLE.strip().split(";"):
        database.execute(statement)


def run(
    pipeline: Pipeline, tables: list[TableName], at_chunk: dict[int, Callable[[], None]]
) -> dict[TableName, BackfillProgress]:
    def act(_: TableName, progress: BackfillProgress) -> None:
        if found := at_chunk.pop(progress.chunks, None):
            found()

    # What is read is in the log a moment later: without it all would be read when chunks tell.
    slowly = {"WALGATE_BACKFILL__ROWS_PER_SECOND": "100"} if len(tables) == 1 else {}
    return run_backfills(
        load_settings(pipeline.folder / "walgate.toml", slowly),
        tables,
        chunk_rows=10,
        parallel=2,
        stop=threading.Event(),
        on_progress=act,
    )


def test_a_table_is_read_through_its_root_while_partitions_come_and_go(
    database18: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    make_table(database18)
    pipeline = make_pipeline(database18)
    database18.execute("alter publication walgate set (publish_via_partition_root = true)")
    database18.execute("delete from t_gone")

    def change() -> None:
        # No chunk keeps an ALTER waiting for longer than it is read.
        database18.execute("alter table t detach partition t_gone")
        database18.execute("alter table t attach partition newcomer for values from (40) to (50)")
        database18.execute("update t set v = 'since' where id % 7 = 0")
        database18.execute("update t set day = 45 where day = 9 and id % 20 = 9")
        database18.execute(
            "insert into t values (902, 25, 'in the empty one'), (903, 99, 'default')"
        )
        database18.execute("delete from t where id % 50 = 0")

    done = run(pipeline, [T], {3: change})
    assert done[T].chunks > 5
    pipeline.catch_up()
    source = read_source(database18, "t")
    assert fold(pipeline.root, str(T)) == source
    assert {"802", "902", "903"} < source.keys()


def test_without_their_root_partitions_are_tables(
    database18: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    make_table(database18)
    pipeline = make_pipeline(database18)
    tables = [TableName("public", leaf) for leaf in LEAVES]

    def move() -> None:
        database18.execute("update t set day = 9 where day = 1")

    assert {*run(pipeline, tables, {2: move})} == {*tables}
    pipeline.catch_up()
    for leaf in LEAVES:
        assert fold(pipeline.root, f"public.{leaf}") == read_source(database18, leaf), leaf


@pytest.fixture(autouse=True)
def _no_patience(database18: Database) -> None:
    """Let an ALTER that a chunk would block fail."""
    database18.execute(f"alter database {database18.name} set lock_timeout = '20s'")
