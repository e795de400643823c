"""The backlog that every system drains: changes of one shape waiting behind a slot.

A table has rows before the backlog begins, so that merging it is a MERGE: every delete and update
is of one of those, spread over all of them. A run drains through a fresh copy of one slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from tests.postgres_server import Database

SLOT = "walgate"
_ORIGIN = "origin"
_TABLE = """
create table bench (id bigint primary key, a int, b smallint, c text, d numeric(18,4), e boolean,
                    f timestamptz, g date, h double precision, i jsonb)
"""
_ROW = """
select n, (n * 7919::bigint) % 1000000, n % 30000, 'customer ' || md5(n::text), (n % 1000000) / 7.0,
       n % 2 = 0, '2026-01-01'::timestamptz + n * interval '1 second',
       '2026-01-01'::date + (n % 3000)::int,
       case when n % 20 = 0 then null else n / 3.0 end,
       jsonb_build_object('k', n, 's', md5((n + 1)::text))
"""
# Of ten changes seven insert, two update and one deletes; `done` is how many went before. Updates
# take the odd keys of the rows that were there, deletes the even ones.
_FILL = f"""
create procedure fill(total int, size int, base int) language plpgsql as $$
declare
  inserted bigint := 0; updated bigint := 0; deleted bigint := 0;
  n_insert int; n_update int; n_delete int; place int := 0;
begin
  while inserted + updated + deleted < total loop
    if size >= 10 then
      n_insert := size * 7 / 10; n_update := size * 2 / 10;
      n_delete := size - n_insert - n_update;
    else
      n_insert := (place < 7)::int; n_update := (place in (7, 8))::int;
      n_delete := (place = 9)::int;
      place := (place + 1) % 10;
    end if;
    if n_insert > 0 then
      insert into bench {_ROW}
        from generate_series(base + inserted + 1, base + inserted + n_insert) n;
    end if;
    if n_update > 0 then
      update bench set a = a + 1, c = c || '!'
        from generate_series(updated, updated + n_update - 1) u
        where id = 1 + 2 * ((u * 7919) % (base / 2));
    end if;
    if n_delete > 0 then
      delete from bench using generate_series(deleted + 1, deleted + n_delete) k where id = 2 * k;
    end if;
    inserted := inserted + n_insert; updated := updated + n_update; deleted := deleted + n_delete;
    commit;
  end loop;
end $$
"""
_COLUMNS = (
    "id, a, b, c, d, e::int, (extract(epoch from f) * 1000000)::bigint, g, floor(h * 1000)::bigint,"
    " i"
)
_HERE = "select pg_current_wal_insert_lsn() - '0/0'"
_CHECKSUM = f"""
select count(*), sum(('x' || substr(md5(concat_ws('|', {_COLUMNS})), 1, 8))::bit(32)::bigint)
from bench
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many changes, and how many of them in one transaction."""

    rows: int
    per_transaction: int

    @property
    def name(self) -> str:
        """How results name it."""
        return str(self.per_transaction)

    @property
    def base(self) -> int:
        """The rows that are there before: an even number, no multiple of what updates step by."""
        return self.rows // 5

    def count(self) -> dict[str, tuple[int, int]]:
        """Per operation the changes, and the sum of their keys."""
        inserts, updates, deletes = self.rows * 7 // 10, self.rows * 2 // 10, self.rows // 10
        half = self.base // 2
        return {
            "insert": (inserts, inserts * self.base + inserts * (inserts + 1) // 2),
            "update": (updates, sum(1 + 2 * ((u * 7919) % half) for u in range(updates))),
            "delete": (deletes, deletes * (deletes + 1)),
        }


@dataclass(frozen=True, slots=True)
class Backlog:
    """A backlog that waits: where it lies in the WAL, and the rows and checksum it leaves."""

    database: Database
    shape: Shape
    first_lsn: int
    end_lsn: int
    rows: int
    checksum: int

    @contextmanager
    def lend_slot(self) -> Iterator[None]:
        """Make the slot that a run drains, and drop it."""
        copy = "select pg_copy_logical_replication_slot(%s, %s)"
        self.database.query(copy, [_ORIGIN, SLOT])
        try:
            yield
        finally:
            drop_slot(self.database, SLOT)


def lay_base(database: Database, shape: Shape) -> None:
    """Make the table, its publication, the slot, and the rows that are there before."""
    database.execute(_TABLE)
    database.execute(_FILL)
    database.execute("create publication walgate for table bench")
    database.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    database.execute(f"insert into bench {_ROW} from generate_series(1, {shape.base}) n")
    database.execute("analyze bench")


def lay_rows(database: Database, rows: int) -> None:
    """Make the table with so many rows, and its publication; no slot is there yet."""
    database.execute(_TABLE)
    database.execute("create publication walgate for all tables")
    database.execute(f"insert into bench {_ROW} from generate_series(1, {rows}) n")
    database.execute("vacuum analyze bench")


def fill(database: Database, shape: Shape) -> Backlog:
    """Write the changes behind the slot, which becomes the one that runs copy."""
    database.query("select pg_copy_logical_replication_slot(%s, %s)", [SLOT, _ORIGIN])
    drop_slot(database, SLOT)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        # Rows are found by key, one by one, and nobody waits for the disk.
        for setting in ("enable_hashjoin", "enable_mergejoin", "enable_seqscan"):
            connection.execute(f"set {setting} to off".encode())
        connection.execute("set synchronous_commit to off")
        first = connection.execute(_HERE).fetchone()
        numbers = (shape.rows, shape.per_transaction, shape.base)
        connection.execute("call fill({}, {}, {})".format(*numbers).encode())
        end = connection.execute(_HERE).fetchone()
        assert first is not None
        assert end is not None
        connection.execute("checkpoint")
    return Backlog(database, shape, int(first[0]), int(end[0]), *sum_up_rows(database))


def sum_up_rows(database: Database) -> tuple[int, int]:
    """The table's rows and their checksum."""
    ((count, checksum),) = database.query(_CHECKSUM)
    return int(count), int(checksum)


def drop_slot(database: Database, name: str) -> None:
    """Drop a slot that nobody uses."""
    database.query("select pg_drop_replication_slot(%s)", [name])
