"""What the server would announce of a table, and a connection that reads its catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from cdc_core.protocol.messages import AnnouncedColumn, Announcement
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection
from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName
from tests.postgres_server import Database

Announce = Callable[[], Announcement]


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    """Lend a connection as capture makes it."""
    with closing(open_connection(SourceSettings(dsn=database.dsn))) as connection:
        yield connection


@pytest.fixture
def announce(database: Database) -> Announce:
    """Lend what the server would announce of table t as it is now."""

    def make() -> Announcement:
        ((oid, identity),) = database.query(
            "select oid::bigint, relreplident::text from pg_class where relname = 't'"
        )
        columns = database.query(
            "select attname::text, atttypid::bigint, atttypmod, exists (select from pg_index"
            " where indrelid = attrelid and attnum = any(indkey)"
            " and case when %s = 'i' then indisreplident else indisprimary end) or %s = 'f'"
            " from pg_attribute where attrelid = %s and attnum > 0 and not attisdropped"
            " order by attnum",
            [identity, identity, oid],
        )
        return Announcement(
            oid=oid,
            table=TableName("public", "t"),
            identity=ReplicaIdentity(identity),
            columns=tuple(AnnouncedColumn(*column) for column in columns),
        )

    return make


def column(relation: Relation, name: str) -> Column:
    """Give one column by its name."""
    (found,) = [column for column in relation.columns if column.name == name]
    return found
