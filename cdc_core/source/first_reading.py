"""The first reading of a table: how much WAL it may write, and page by page what the slot can bear.

Whoever reads a row first after its transaction has ended marks the row's page (a hint bit). With
checksums, or with `wal_log_hints`, the server then writes the whole page to the WAL. So it does,
with any settings, where the reader takes dead rows out of a page. A slot whose
`max_slot_wal_keep_size` is smaller than the table would be lost by one fast reading. So the pages
are read once beforehand, in their own order: so many pages write so much WAL at most, and a page
that was read is not written again.

VACUUM reads pages too, and notes how many need no other look.
Source: PostgreSQL documentation, sections 19.5 (`wal_log_hints`) and 28.2 (data checksums).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc_core.quantities import format_size
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import source_errors
from cdc_core.source.primary import FindHistory
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.reading_connection import connect_reader
from cdc_core.source.slot import read_slot
from cdc_core.vocabulary import TableName

# In the WAL a page has a header, and the WAL's own pages have theirs.
_OVERHEAD = 1.03
# So much of what a slot may keep is left to the source's own changes.
_LEFT_TO_SOURCE = 0.5
# Other processes may read other tables meanwhile: each takes so much of the rest at once.
_AT_ONCE = 0.25
_MOST_AT_ONCE = 64 << 20
# Less than this share of what a slot may keep is not worth a statement.
_LEAST = 0.02
# Of many tables a message names the largest.
_NAMED = 5

# Pages that VACUUM has not seen, where marks are logged, and pages that were written to since, as
# far as statistics tell: a reader takes dead rows out of them. An update writes to two. Where the
# statistics know of no VACUUM, a crash or a failover may have lost them, and nothing is known. A
# partitioned table has the pages of its partitions.
_UNREAD = """
with recursive part as (
    select c.oid from pg_class c
    where c.relnamespace = (select oid from pg_namespace where nspname = %(schema)s)
      and c.relname = %(name)s
    union
    select t.relid from part, pg_partition_tree(part.oid) t where t.isleaf)
select coalesce(max(size), 0)::bigint, count(*)::int,
       coalesce(sum(case when vacuumed_at is null then size else least(
           size, written + case when logs_marks then greatest(0, size - c.relallvisible)
                                else 0 end) end), 0)::bigint
from part
join pg_class c on c.oid = part.oid and c.relkind in ('r', 'm')
cross join lateral (
    select pg_relation_size(c.oid) / current_setting('block_size')::int as size,
           coalesce(pg_stat_get_last_vacuum_time(c.oid),
                    pg_stat_get_last_autovacuum_time(c.oid)) as vacuumed_at,
           coalesce(2 * pg_stat_get_dead_tuples(c.oid)
                    + pg_stat_get_ins_since_vacuum(c.oid), 0) as written,
           'on' in (current_setting('data_checksums'), current_setting('wal_log_hints'))
               as logs_marks) s
"""
_LIMIT = """
select case when setting::bigint < 0 then null else setting::bigint << 20 end,
       current_setting('block_size')::int
from pg_settings where name = 'max_slot_wal_keep_size'
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes of WAL that a slot may keep, None without a limit; bytes of a page."""

    wal_bytes: int | None
    page_bytes: int

    def find_excess(self, pages: int) -> int | None:
        """The bytes of WAL that so many pages take; None where the slot bears them."""
        size = int(pages * self.page_bytes * _OVERHEAD)
        if self.wal_bytes is None:
            return None
        return size if size > self.wal_bytes * (1 - _LEFT_TO_SOURCE) else None

    def choose_pages(self, left_bytes: int, unread: Unread) -> int:
        """How many pages of each part to read now, where the slot may keep so many bytes more."""
        assert self.wal_bytes is not None
        room = (left_bytes - self.wal_bytes * _LEFT_TO_SOURCE) * _AT_ONCE
        if room < self.wal_bytes * _LEAST:
            return 0
        per_page = self.page_bytes * _OVERHEAD * max(1, unread.parts)
        return max(0, int(min(room, _MOST_AT_ONCE) / per_page))


@dataclass(frozen=True, slots=True)
class Unread:
    """The pages of the longest part of a table, its parts, and all pages with unmarked rows."""

    longest: int
    parts: int
    pages: int


def read_limit(connection: psycopg.Connection) -> Limit:
    """Read what a slot of this server may keep. Raises: SourceError."""
    with source_errors("read max_slot_wal_keep_size"):
        row = connection.execute(_LIMIT).fetchone()
    assert row is not None
    return Limit(*row)


def count_unread(connection: psycopg.Connection, table: PublishedTable) -> Unread:
    """Count the pages of a table whose rows may not be marked yet. Raises: SourceError."""
    with source_errors(f"count the pages of {table.table}"):
        name = {"schema": table.schema, "name": table.name}
        row = connection.execute(_UNREAD, name).fetchone()
    assert row is not None
    return Unread(*row)


@dataclass(frozen=True, slots=True)
class CostlyReadings:
    """Bytes of WAL that the first reading of each table may write, and what the slot may keep."""

    sizes: Mapping[str, int]
    wal_bytes: int

    def explain(self) -> str:
        """Which tables these are, the largest first, and what is done about it."""
        names = sorted(self.sizes, key=lambda name: -self.sizes[name])
        listed = ", ".join(f"{name} {format_size(self.sizes[name])}" for name in names[:_NAMED])
        more = f" and {len(names) - _NAMED} other tables" if len(names) > _NAMED else ""
        return (
            f"the first reading may write much WAL ({listed}{more}), of which the slot may keep"
            f" {format_size(self.wal_bytes)}: it goes page by page, no faster than the slot bears"
        )


def find_costly_readings(
    connection: psycopg.Connection, tables: Iterable[PublishedTable]
) -> CostlyReadings | None:
    """Find the tables whose first reading could cost the slot; None where there are none.

    Raises: SourceError.
    """
    limit = read_limit(connection)
    sizes = {
        str(table.table): size
        for table in tables
        if (size := limit.find_excess(count_unread(connection, table).pages)) is not None
    }
    if not sizes or limit.wal_bytes is None:
        return None
    return CostlyReadings(sizes, limit.wal_bytes)


class FirstReading:
    """Reads the pages of one table once, where the reading of all of it could cost the slot."""

    def __init__(
        self,
        source: SourceSettings,
        table: TableName,
        *,
        find_history: FindHistory,
        rows: int | None = None,
    ) -> None:
        """Nothing is asked of the source yet; `rows` are to be read afterwards, None for all."""
        self._source = source
        self._table = table
        self._find_history = find_history
        self._rows = rows
        self._connection: psycopg.Connection | None = None
        self._page = 0
        self.is_done = False

    def read_some(self) -> str | None:
        """Read some pages; give why none can be read now. Raises: SourceError."""
        if self._connection is None:
            self._connection, self._published = connect_reader(
                self._source, self._table, find_history=self._find_history
            )
            with source_errors(f"read {self._table}"):
                # By numbers of pages, and in no other way.
                self._connection.execute("set enable_seqscan = off")
            self._limit = read_limit(self._connection)
            self._unread = count_unread(self._connection, self._published)
            # So many rows lie in as many pages at most.
            pages = self._unread.pages
            if self._limit.find_excess(min(pages, self._rows or pages)) is None:
                self._end()
                return None
        slot = read_slot(self._connection, self._source.slot)
        if slot is None or slot.safe_wal_size is None or self._page >= self._unread.longest:
            self._end()
            return None
        pages = self._limit.choose_pages(slot.safe_wal_size, self._unread)
        if not pages:
            return (
                f"the slot may keep {format_size(max(0, slot.safe_wal_size))} more of WAL, and the"
                f" first reading of {self._table} writes to it: half of what it may keep is left to"
                " the source's own changes"
            )
        self._read_pages(self._page + pages)
        return None

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_pages(self, past: int) -> None:
        assert self._connection is not None
        query = sql.SQL("select count(*) from {} where ctid >= {}::tid and ctid < {}::tid").format(
            self._published.rows_of, f"({self._page},0)", f"({past},0)"
        )
        with source_errors(f"read {self._table}"):
            self._connection.execute(query)
        self._page = past

    def _end(self) -> None:
        self.is_done = True
        self.close()
