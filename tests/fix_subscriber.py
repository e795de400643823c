"""The judge of what a stream means: a second database that PostgreSQL itself subscribes with.

It lies on the same server, so its slot is made by hand: CREATE SUBSCRIPTION would wait for itself.
Tables are made in it by the test, in whatever shape it is to receive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest
from psycopg import sql

from tests.deadline import wait_for
from tests.postgres_server import Database

DEADLINE_S = 60.0


class Subscriber:
    """A database that follows a publication of another; nothing of ours is in it."""

    def __init__(self, source: Database, publication: str = "walgate") -> None:
        """Make database and slot; from here on it can be given all that is committed."""
        self.source = source
        self.publication = publication
        self.slot = f"n_{source.name}"
        self.database = source.server.create_database(f"{source.name}_subscriber")
        source.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [self.slot])

    def subscribe(self) -> None:
        """Begin to follow; the tables are there."""
        statement = sql.SQL(
            "create subscription native connection {} publication {} with (create_slot = false,"
            " slot_name = {}, copy_data = false)"
        ).format(
            sql.Literal(self.source.dsn), sql.Identifier(self.publication), sql.Literal(self.slot)
        )
        self._run(statement)

    def refresh(self) -> None:
        """Take up tables that are new to the publication, without their rows."""
        self._run(sql.SQL("alter subscription native refresh publication with (copy_data = false)"))

    def execute(self, *statements: str) -> None:
        """Run statements in it."""
        for statement in statements:
            self.database.execute(statement)

    def wait(self) -> None:
        """Wait until all that is committed now is in it."""
        ((lsn,),) = self.source.query("select pg_current_wal_lsn()::text")
        reached = (
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
            " where slot_name = %s"
        )
        wait_for(
            lambda: self.source.query(reached, [lsn, self.slot]) == [(True,)],
            DEADLINE_S,
            f"the subscriber to come to {lsn}",
        )

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[str | None, ...]]:
        """Give a table's rows as texts, in order."""
        chosen = ", ".join(f'"{column}"::text' for column in columns)
        return sorted(self.database.query(f"select {chosen} from {table}"), key=repr)

    def end(self) -> None:
        """Stop following and drop the database; the slot goes with the source."""
        for statement in (
            "alter subscription native disable",
            "alter subscription native set (slot_name = none)",
            "drop subscription native",
        ):
            try:
                self.database.execute(statement)
            except psycopg.errors.UndefinedObject:
                break
        self.source.server.drop_database(self.database.name)

    def _run(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture
def make_subscriber() -> Iterator[Callable[..., Subscriber]]:
    """Lend a maker of subscribers, `(source, publication="walgate")`, once it has a publication."""
    made: list[Subscriber] = []

    def make(source: Database, publication: str = "walgate") -> Subscriber:
        made.append(Subscriber(source, publication))
        return made[-1]

    yield make
    for subscriber in made:
        subscriber.end()
