"""The first reading of a table: how much WAL it may write, and how to read without losing the slot.

The first session that reads a row after the row's transaction ended sets a hint bit in its page.
With checksums, or with `wal_log_hints`, the server then writes the whole page to the WAL. With any
settings it writes the page if the reader removes dead rows from it. A fast reading of a table
that is larger than `max_slot_wal_keep_size` could cost the slot. So Walgate reads the pages of such
a table once beforehand, in their own order. The number of pages bounds the WAL of this reading.

VACUUM sets hint bits, too. It records how many pages it has found without dead rows.
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
from cdc_core.source.primary import FindHistory, History, recheck_history
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.reading_connection import connect_reader
from cdc_core.source.retention import read_wal_limit
from cdc_core.source.slot import read_slot
from cdc_core.vocabulary import TableName

# A page that is written to the WAL has a header there, and each page of the WAL has one, too.
_OVERHEAD = 1.03
# The share of a slot's WAL limit that is reserved for the source's own changes.
_LEFT_TO_SOURCE = 0.5
# Other processes may read other tables at the same time: one statement uses this share of the room.
_AT_ONCE = 0.25
_MAX_AT_ONCE = 64 << 20
# With less room than this share of the WAL limit, Walgate runs no statement.
_LEAST = 0.02
# How many tables a message names, the largest first.
_NAMED = 5

# If the server logs hint bits, a reader changes the pages that VACUUM has not seen. On every server
# it also changes pages that were written to since, because it removes dead rows from them. The
# statistics count these writes; an update writes to two pages. A crash or a failover loses the
# statistics. So if there is no time of a last VACUUM, all pages count. A partitioned table has the
# pages of its partitions.
_UNREAD = """
with recursive part as (
    select c.oid from pg_class c
    where c.relnamespace = (select oid from pg_namespace where nspname = %(schema)s)
      and c.relname = %(name)s
    union
    select t.relid from part, pg_partition_tree(part.oid) t where t.isleaf)
select coalesce(max(size), 0)::bigint, count(*)::int,
       coalesce(sum(case when vacuumed_at is null then size else least(
           size, written + case when logs_hints then greatest(0, size - c.relallvisible)
                                else 0 end) end), 0)::bigint,
       current_setting('block_size')::int
from part
join pg_class c on c.oid = part.oid and c.relkind in ('r', 'm')
cross join lateral (
    select pg_relation_size(c.oid) / current_setting('block_size')::int as size,
           coalesce(pg_stat_get_last_vacuum_time(c.oid),
                    pg_stat_get_last_autovacuum_time(c.oid)) as vacuumed_at,
           coalesce(2 * pg_stat_get_dead_tuples(c.oid)
                    + pg_stat_get_ins_since_vacuum(c.oid), 0) as written,
           'on' in (current_setting('data_checksums'), current_setting('wal_log_hints'))
               as logs_hints) s
"""


@dataclass(frozen=True, slots=True)
class Unread:
    """The size of a table, and how much of it a first reader may change.

    `longest` has the pages of the largest part (a table without partitions is one part). `parts` is
    the number of parts, `pages` the pages that a reader may change, `page_bytes` a page's bytes.
    """

    longest: int
    parts: int
    pages: int
    page_bytes: int

    def find_cost(self, wal_limit: int, *, rows: int | None = None) -> int | None:
        """The bytes of WAL that a reading may write; None if the slot has room for them.

        `wal_limit` is in bytes. `rows` rows lie in at most as many pages; None means all rows.
        """
        pages = self.pages if rows is None else min(self.pages, rows)
        size = int(pages * self.page_bytes * _OVERHEAD)
        return size if size > wal_limit * (1 - _LEFT_TO_SOURCE) else None

    def choose_pages(self, left_bytes: int, wal_limit: int) -> int:
        """Choose how many pages of each part to read; 0 if the slot has too little room.

        `left_bytes` is how much more WAL the slot may keep. A statement reads the same page numbers
        of all parts: at least one page of each.
        """
        room = (left_bytes - wal_limit * _LEFT_TO_SOURCE) * _AT_ONCE
        if room < wal_limit * _LEAST:
            return 0
        per_page = self.page_bytes * _OVERHEAD * max(1, self.parts)
        return max(1, int(min(room, _MAX_AT_ONCE) / per_page))


def count_unread(connection: psycopg.Connection, table: PublishedTable) -> Unread:
    """Count the pages of a table that a reader may change. Raises: SourceError."""
    with source_errors(f"count the pages of {table.table}"):
        name = {"schema": table.schema, "name": table.name}
        row = connection.execute(_UNREAD, name).fetchone()
    assert row is not None
    return Unread(*row)


@dataclass(frozen=True, slots=True)
class CostlyReadings:
    """The WAL in bytes that the first reading of each table may write, and the slot's limit."""

    sizes: Mapping[str, int]
    wal_bytes: int

    def explain(self) -> str:
        """Name the tables, the largest first, and say how Walgate reads them."""
        names = sorted(self.sizes, key=lambda name: -self.sizes[name])
        listed = ", ".join(f"{name} {format_size(self.sizes[name])}" for name in names[:_NAMED])
        more = f" and {len(names) - _NAMED} other tables" if len(names) > _NAMED else ""
        return (
            f"the first reading may write much WAL ({listed}{more}), and the slot may keep"
            f" {format_size(self.wal_bytes)}: Walgate reads pages only while the slot has room for"
            " that WAL"
        )


def find_costly_readings(
    connection: psycopg.Connection, tables: Iterable[PublishedTable], *, rows: int | None = None
) -> CostlyReadings | None:
    """Find the tables whose first reading could cost the slot; None if there are none.

    `rows` is how many rows of each will be read; None means all. Raises: SourceError.
    """
    wal_limit = read_wal_limit(connection)
    if wal_limit is None:
        return None
    sizes = {
        str(table.table): size
        for table in tables
        if (size := count_unread(connection, table).find_cost(wal_limit, rows=rows)) is not None
    }
    return CostlyReadings(sizes, wal_limit) if sizes else None


class FirstReading:
    """Reads the pages of one table once; stops while the slot has too little room for their WAL."""

    def __init__(
        self, source: SourceSettings, table: TableName, *, find_history: FindHistory
    ) -> None:
        """Prepare the reading; `read_some` connects."""
        self._source = source
        self._table = table
        self._find_history = find_history
        self._connection: psycopg.Connection | None = None
        self._history: History | None = None
        self._page = 0
        self.is_done = False

    def read_some(self) -> str | None:
        """Read some pages; if none can be read now, give the reason.

        Raises: SourceError, StagingError.
        """
        connection = self._connect()
        slot = read_slot(connection, self._source.slot)
        wal_limit = read_wal_limit(connection)
        left = None if slot is None else slot.safe_wal_size
        if left is None or wal_limit is None or self._page >= self._unread.longest:
            self.is_done = True
            self.close()
            return None
        pages = self._unread.choose_pages(left, wal_limit)
        if not pages:
            return (
                f"the slot may keep only {format_size(max(0, left))} more of WAL; the first reading"
                f" of {self._table} writes WAL, and leaves half of the slot's limit to the source's"
                " own changes"
            )
        self._read_pages(self._page + pages)
        return None

    def close(self) -> None:
        """Disconnect. The next call of `read_some` goes on at the same page of the same server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection:
        if self._connection is not None and not self._connection.closed:
            # Nobody reads from the slot of a former primary, so that slot never gets room again.
            recheck_history(self._connection, self._find_history)
            return self._connection
        history = self._find_history()
        if history != self._history:
            # The log follows another server, whose pages are still unread.
            self._history, self._page = history, 0
        connection, self._published = connect_reader(
            self._source, self._table, find_history=self._find_history
        )
        self._connection = connection
        with source_errors(f"read {self._table}"):
            # Force a scan of the given page numbers only.
            connection.execute("set enable_seqscan = off")
        self._unread = count_unread(connection, self._published)
        return connection

    def _read_pages(self, past: int) -> None:
        assert self._connection is not None
        query = sql.SQL("select count(*) from {} where ctid >= {}::tid and ctid < {}::tid").format(
            self._published.rows_of, f"({self._page},0)", f"({past},0)"
        )
        with source_errors(f"read {self._table}"):
            self._connection.execute(query)
        self._page = past
