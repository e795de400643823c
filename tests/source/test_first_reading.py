"""How many pages of a table may be read for the first time, and which were."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from cdc_core.source.first_reading import Unread, count_unread
from cdc_core.source.published_tables import read_published_tables
from tests.deadline import wait_for
from tests.postgres_server import Database, PostgresServer

MB, PAGE = 1 << 20, 8192
WAL_LIMIT = 64 * MB
ROWS = "insert into {} select i, repeat('x', 1000) from generate_series(1, 800) i"
TABLES = """
    create table plain (id int primary key, v text) with (autovacuum_enabled = off);
    create table parted (id int primary key, v text) partition by hash (id);
    create table one partition of parted for values with (modulus 2, remainder 0);
    create table two partition of parted for values with (modulus 2, remainder 1);
    create publication p for table plain, parted with (publish_via_partition_root = true)
"""


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("left", [-1, 0, 31 * MB, 32 * MB, 33 * MB, 48 * MB, 64 * MB])
def test_half_of_what_the_slot_may_keep_is_left_to_the_source(left: int, parts: int) -> None:
    written = make_unread(parts=parts).choose_pages(left, WAL_LIMIT) * parts * PAGE
    # A few pages are not worth a statement.
    if left <= 33 * MB:
        assert written == 0
    else:
        assert 0 < written <= (left - 32 * MB) / 4


def test_of_very_many_partitions_one_page_each_is_read() -> None:
    unread = make_unread(parts=2_000)
    assert unread.choose_pages(64 * MB, WAL_LIMIT) == 1
    assert unread.choose_pages(32 * MB, WAL_LIMIT) == 0


def test_a_reading_that_the_slot_bears_is_not_slowed() -> None:
    unread = make_unread(pages=32 * MB // PAGE)
    assert unread.find_cost(WAL_LIMIT) is not None
    assert unread.find_cost(WAL_LIMIT, rows=500) is None
    assert make_unread(pages=16 * MB // PAGE).find_cost(WAL_LIMIT) is None


def make_unread(*, pages: int = 99_999, parts: int = 1) -> Unread:
    """A table with so many pages that were never read."""
    return Unread(longest=pages, parts=parts, pages=pages, page_bytes=PAGE)


def test_pages_are_unread_until_a_vacuum_has_seen_them_and_again_once_written_to(
    database: Database,
) -> None:
    database.execute(TABLES)
    for table in ("plain", "parted"):
        database.execute(ROWS.format(table))
    loaded = {table: count(database, table) for table in ("plain", "parted")}
    assert loaded["plain"].parts == 1
    assert loaded["plain"].pages == loaded["plain"].longest > 100
    assert loaded["parted"].parts == 2
    assert loaded["parted"].longest < loaded["parted"].pages
    vacuum(database)
    database.execute("update plain set v = 'y' where id <= 20")
    assert 20 <= count(database, "plain").pages <= 60


def test_of_a_table_that_statistics_say_nothing_of_all_pages_are_unread(
    private_postgres: Callable[..., PostgresServer],
) -> None:
    """A crash, and a failover, lose the counters; what VACUUM wrote into the catalog stays."""
    server = private_postgres()
    database = server.create_database("shop")
    database.execute(TABLES)
    database.execute(ROWS.format("plain"))
    vacuum(database)
    server.restart("immediate")
    found = count(database, "plain")
    assert found.pages == found.longest > 0


def test_without_checksums_the_pages_that_were_written_to_count(
    private_postgres: Callable[..., PostgresServer],
) -> None:
    """A reader takes dead rows out of a page, and writes the page to the WAL."""
    database = private_postgres(15).create_database("shop")
    assert database.query("show data_checksums") == [("off",)]
    database.execute(TABLES)
    vacuum(database)
    database.execute(ROWS.format("plain"))
    vacuum(database)
    database.execute("update plain set v = 'y' where id <= 20")
    assert 20 <= count(database, "plain").pages <= 60


def vacuum(database: Database) -> None:
    """Have VACUUM see every page, once the statistics of what came before have arrived."""

    def is_seen() -> bool:
        with closing(psycopg.connect(database.dsn, autocommit=True)) as connection:
            connection.execute("vacuum plain")
        return count(database, "plain").pages == 0

    wait_for(is_seen, 30.0, "every page to be seen by VACUUM")


def count(database: Database, table: str) -> Unread:
    """Count the unread pages of a table as a role of its own would."""
    with closing(psycopg.connect(database.dsn)) as connection:
        major = connection.info.server_version // 10_000
        (found,) = [
            one
            for one in read_published_tables(connection, ["p"], major=major)
            if one.name == table
        ]
        return count_unread(connection, found)
