"""What a chunk costs the source: its own rows by the key's index, of a partitioned table too."""

from __future__ import annotations

import pytest

from cdc_core.settings import SourceSettings
from cdc_core.source.chunks import ChunkReader
from cdc_core.spooled import Key
from cdc_core.vocabulary import TableName
from tests.postgres_server import Database

SIZE = 500
# By name: the columns that its key has, and those it is partitioned by.
PARTITIONED = {"led": ("day, id", "day"), "apart": ("id, day", "day")}
LEAVES = 30


def read_in_chunks(database: Database, name: str, columns: list[str]) -> list[tuple[str, ...]]:
    """All rows, in chunks, by a session of its own."""
    reader = ChunkReader(
        SourceSettings(dsn=database.dsn), TableName("public", name), find_history=lambda: None
    )
    rows: list[tuple[str, ...]] = []
    low: Key | None = None
    try:
        while True:
            with reader.lock():
                opened = reader.look()
                high = opened.find_boundary(low, None, SIZE)
                values, _ = opened.read_rows(columns, low=low, high=high)
                rows += [tuple(row) for row in values.to_pylist()]
            if high is None:
                return rows
            low = high
    finally:
        reader.close()


def count_reads(database: Database, name: str) -> tuple[int, int]:
    """Scans of the whole table or of any of its partitions, and entries read from its indexes."""
    ((scans, entries),) = database.query(
        "select (select sum(seq_scan) from pg_stat_user_tables where relid = any(parts)),"
        " (select sum(idx_tup_read) from pg_stat_user_indexes where relid = any(parts))"
        " from (select array(select relid::oid from pg_partition_tree(%s)"
        " union select %s::regclass::oid) as parts) one",
        [name, name],
    )
    return int(scans), int(entries)


def test_single_keys_are_looked_up(database18: Database) -> None:
    database18.execute("create table t (tenant int, id int, primary key (tenant, id))")
    database18.execute("insert into t select 7, i from generate_series(1, 20000) i")
    database18.execute("vacuum analyze t")
    database18.execute("create publication walgate for all tables")
    before = count_reads(database18, "t")
    reader = ChunkReader(
        SourceSettings(dsn=database18.dsn), TableName("public", "t"), find_history=lambda: None
    )
    with reader.lock():
        found = reader.look().read_keys(["id"], keys=[("7", "9"), ("7", "5"), ("8", "1")])
    reader.close()
    assert sorted(found.to_pylist()) == [["5"], ["9"]]
    scans, entries = count_reads(database18, "t")
    assert (scans, entries < 20) == (before[0], True)


def test_an_identity_index_is_read_in_its_own_order(database: Database) -> None:
    """By the order of the table's columns it would be sorted for each chunk."""
    database.execute(
        "create table t (id int not null, tenant text not null, note text);"
        " create unique index own on t (tenant, id) include (note);"
        " alter table t replica identity using index own;"
        " insert into t select i, i % 3, 'n' from generate_series(1, 5000) i"
    )
    database.execute("vacuum analyze t")
    database.execute("create publication walgate for all tables")
    before, _ = count_reads(database, "t")
    rows = read_in_chunks(database, "t", ["id", "tenant"])
    scans, entries = count_reads(database, "t")
    assert rows == database.query("select id::text, tenant from t order by t.tenant, t.id")
    assert scans == before
    assert entries < 3 * len(rows)


@pytest.mark.parametrize("name", PARTITIONED)
def test_a_partitioned_table_is_read_by_the_indexes_of_its_leaves(
    database: Database, name: str
) -> None:
    key, by = PARTITIONED[name]
    database.execute(
        f"create table {name} (id int, day int, note text, primary key ({key}))"
        f" partition by range ({by})"
    )
    # One has partitions of its own, one is empty, and what is in no other is in the last.
    database.execute(
        f"create table {name}_sub partition of {name} for values from (0) to (1)"
        " partition by hash (id)"
    )
    for part in range(2):
        database.execute(
            f"create table {name}_sub{part} partition of {name}_sub"
            f" for values with (modulus 2, remainder {part})"
        )
    for day in range(1, LEAVES):
        database.execute(
            f"create table {name}_{day} partition of {name} for values from ({day}) to ({day + 1})"
        )
    database.execute(f"create table {name}_empty partition of {name} for values from (-9) to (-1)")
    database.execute(f"create table {name}_other partition of {name} default")
    database.execute(
        f"insert into {name} select i, i % {LEAVES + 1}, 'n' from generate_series(1, 9000) i"
    )
    database.execute("vacuum analyze")
    database.execute(
        f"create publication walgate for table {name} with (publish_via_partition_root = true)"
    )
    before, _ = count_reads(database, name)
    rows = read_in_chunks(database, name, ["id", "day"])
    scans, entries = count_reads(database, name)
    expected = database.query(f"select id::text, day::text from {name}")
    assert sorted(rows) == sorted(expected)
    assert scans == before
    # Its own rows for the boundary and again for the read; of each leaf where the next ones begin.
    chunks = len(rows) // SIZE + 1
    assert entries < 2 * len(rows) + 2 * chunks * (LEAVES + 4)
