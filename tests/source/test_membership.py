"""By what a table is published: another text whenever changes may have been left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection
from cdc_core.source.membership import read_membership, require_publications
from tests.postgres_server import Database

Read = Callable[..., str]


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    """Lend a connection as capture makes it."""
    with closing(open_connection(SourceSettings(dsn=database.dsn))) as connection:
        yield connection


@pytest.fixture
def read(database: Database, connection: psycopg.Connection) -> Read:
    """Lend a way to read it, for a transaction of now unless an older one is given."""

    def read_now(table: str = "t", *, xid: int | None = None, previous: str | None = None) -> str:
        ((oid,),) = database.query("select %s::regclass::oid::bigint", [table])
        chosen = current_xid(database) if xid is None else xid
        return read_membership(connection, ("p", "q"), oid, xid=chosen, previous=previous)

    return read_now


def current_xid(database: Database) -> int:
    """Give the xid of a transaction of now, as the stream tells it."""
    ((xid,),) = database.query("select (pg_current_xact_id()::text::bigint % (2^32)::bigint)")
    return int(xid)


def test_what_leaves_nothing_out_is_the_same(database: Database, read: Read) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("create table other (id int primary key)")
    database.execute("create publication p for table t")
    before = read()
    database.execute("alter publication p add table other")
    database.execute("alter publication p set table t, other")
    database.execute("alter table t add column v text")
    assert read(previous=before) == before


ALTERATIONS = (
    ("alter publication p drop table t", "alter publication p add table t"),
    (
        "alter publication p set (publish = 'insert')",
        "alter publication p set (publish = 'insert, update, delete, truncate')",
    ),
    ("alter publication p set table t where (id > 1)",),
    ("alter publication p set table t (id)",),
    ("drop publication p", "create publication p for table t"),
    ("create publication q for all tables",),
)


def test_what_may_leave_something_out_is_another(database: Database, read: Read) -> None:
    for statements in ALTERATIONS:
        database.execute("drop publication if exists p, q")
        database.execute("drop table if exists t")
        database.execute("create table t (id int primary key)")
        database.execute("create publication p for table t")
        before, xid = read(), current_xid(database)
        for statement in statements:
            database.execute(statement)
        after = read(previous=before)
        assert after != before, statements
        # A transaction from before was sent by neither, as far as can be told.
        older = read(xid=xid, previous=before)
        assert older not in {before, after}, statements
        assert read(xid=xid, previous=after) == older, statements
        # Nor was the first one of a table that is new to us.
        assert read(xid=xid, previous=None) == older, statements


def test_what_is_published_no_more_is_as_it_was(database: Database, read: Read) -> None:
    database.execute("create table t (id int primary key)")
    assert read(previous="p 1.2/3") == "p 1.2/3"
    database.execute("create publication p for table t")
    assert read(previous=read(previous=None)) != "not published"
    database.execute("drop publication p")
    assert read() == "not published"


def test_schemas_all_tables_and_the_tables_above_a_partition_publish_it(
    database: Database, read: Read
) -> None:
    database.execute("create table root (id int primary key) partition by list (id)")
    database.execute("create table t partition of root for values in (1)")
    database.execute("create publication p for table root")
    by_root = read()
    assert by_root == read("root")
    database.execute("create publication q for tables in schema public")
    by_both = read()
    assert by_both.startswith(f"{by_root}, q ")
    database.execute("drop publication p")
    database.execute("create publication p for all tables")
    assert read().startswith("p ")
    assert "/*, q " in read()


def test_a_publication_that_is_gone_is_named(
    database: Database, connection: psycopg.Connection
) -> None:
    database.execute("create publication p")
    require_publications(connection, ("p",))
    with pytest.raises(SourceError, match="publication q does not exist") as caught:
        require_publications(connection, ("p", "q"))
    assert caught.value.retry is Retry.AFTER_FIX
