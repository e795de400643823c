"""A transaction with a smaller xid that commits later: the catalog is newer than the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from cdc_core.source.catalog import complete_relation
from tests.fix_catalog import Announce, column
from tests.postgres_server import Database

MAKE_SLOT = "select pg_create_logical_replication_slot('late', 'pgoutput')"
MAKE = "create table t (id int primary key, gone text, v text)"
FILL = "insert into t values (1, 'g', 'a'), (2, 'g', 'b')"
REWRITE = "alter table t alter column v type text using v || '!'"


@contextmanager
def committed_first(database: Database) -> Iterator[tuple[psycopg.Connection, int]]:
    """Lend an open transaction, and the xid of one that began after it and has committed."""
    with closing(psycopg.connect(database.dsn)) as late:
        late.execute("update t set v = 'new' where id = 1")
        with closing(psycopg.connect(database.dsn)) as other:
            other.execute("update t set v = 'new' where id = 2")
            ((xid,),) = other.execute("select pg_current_xact_id()::xid::text").fetchall()
            other.commit()
        yield late, int(xid)
        late.commit()


def fill(database: Database, *statements: str) -> None:
    """Run statements, each in its own transaction."""
    for statement in statements:
        database.execute(statement)


def test_an_alter_that_committed_late_is_not_older_than_the_stream(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    fill(database, MAKE, FILL, MAKE_SLOT)
    with committed_first(database) as (late, xid):
        late.execute(REWRITE)
    seen = complete_relation(connection, announce(), previous=None, xid=xid, slot="late")
    assert column(seen, "v").catalog_xid is None
    later = complete_relation(connection, announce(), previous=seen, xid=xid + 9, slot="late")
    assert later.rewritten
    assert later.version != seen.version


def test_a_column_that_was_dropped_and_added_again_late_is_not_known(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    fill(database, MAKE, FILL, MAKE_SLOT)
    announced = announce()
    with committed_first(database) as (late, xid):
        late.execute("alter table t drop column gone")
        late.execute("alter table t add column gone text")
    seen = complete_relation(connection, announced, previous=None, xid=xid, slot="late")
    assert column(seen, "gone").attnum is None


class Interrupted:
    """A connection of capture, beside which an ALTER commits after its first statement."""

    def __init__(self, connection: psycopg.Connection, alter: Callable[[], None]) -> None:
        self._connection = connection
        self._alters = [alter]

    def execute(self, *asked: Any) -> SimpleNamespace:
        rows = self._connection.execute(*asked).fetchall()
        while self._alters:
            self._alters.pop()()
        return SimpleNamespace(fetchall=lambda: rows)


def test_an_alter_while_the_catalog_is_read_is_seen_at_the_next_announcement(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    fill(database, MAKE, FILL, MAKE_SLOT)
    ((xid,),) = database.query("select pg_current_xact_id()::xid::text")
    first = complete_relation(connection, announce(), previous=None, xid=int(xid), slot="late")
    beside = Interrupted(connection, lambda: database.execute(REWRITE))
    announced = announce()
    asked: Any = beside
    seen = complete_relation(asked, announced, previous=first, xid=int(xid), slot="late")
    later = complete_relation(connection, announced, previous=seen, xid=int(xid), slot="late")
    assert later.rewritten
    assert not first.rewritten


@pytest.mark.parametrize(
    "statements",
    [(MAKE, FILL, REWRITE, MAKE_SLOT), (MAKE_SLOT, MAKE, FILL, "truncate t")],
    ids=["before_the_slot", "by_the_table_itself"],
)
def test_what_ended_before_any_change_that_is_sent_is_older(
    database: Database,
    announce: Announce,
    connection: psycopg.Connection,
    statements: tuple[str, ...],
) -> None:
    fill(database, *statements)
    ((now,),) = database.query("select pg_current_xact_id()::xid::text")
    seen = complete_relation(connection, announce(), previous=None, xid=int(now), slot="late")
    assert seen.storage
    assert column(seen, "v").catalog_xid is not None
