"""Reading a table in chunks: under a lock, by one snapshot, as the stream would send it.

The lock comes first: a rewrite between snapshot and read would make the read empty. While it is
held no ALTER and no TRUNCATE can come between the rows and the watermark that tells of them. It is
the weakest there is, and keeps no reader and no writer waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from cdc_core.errors import Retry, SourceError
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.protocol.messages import AnnouncedColumn, Announcement
from cdc_core.settings import SourceSettings
from cdc_core.source.catalog import complete_relation
from cdc_core.source.connection import open_connection, source_errors
from cdc_core.source.membership import read_membership
from cdc_core.source.published_tables import PublishedTable, read_published_tables
from cdc_core.spooled import Key
from cdc_core.vocabulary import Relation, ReplicaIdentity, TableName

_LIST = DECODED_SCHEMA.field("values").type
# An index is scanned; whoever waits behind our lock request waits no longer than this.
_TIMEOUTS = {"lock_timeout": "5s", "statement_timeout": "10min"}
_SETTINGS = sql.SQL("; ").join(
    sql.SQL("set local {} = {}").format(sql.Identifier(name), sql.Literal(value))
    for name, value in (_TIMEOUTS | {"row_security": "off"}).items()
)
_COLUMNS = """
select a.attname::text, a.atttypid::bigint, a.atttypmod
from pg_attribute a where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""


@dataclass(frozen=True, slots=True)
class OpenRead:
    """A table locked and seen by one snapshot, until its transaction ends.

    `relation` is what the stream would announce now; `snapshot` is Postgres' text form.
    """

    relation: Relation
    snapshot: str
    _connection: psycopg.Connection
    _published: PublishedTable

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns that identify a row, in key order."""
        return tuple(self.relation.columns[index].name for index in self.relation.key)

    def read_rows(
        self, columns: Sequence[str], *, low: Key | None, high: Key | None
    ) -> list[pa.StringArray]:
        """Texts of the rows above `low`, up to `high`, in key order; one array for each column.

        Raises: SourceError.
        """
        bounds = [self._bound(">", low), self._bound("<=", high)]
        return self._copy(columns, bounds)

    def read_keys(self, columns: Sequence[str], *, keys: Sequence[Key]) -> list[pa.StringArray]:
        """Texts of the rows that have one of some keys, in key order; one array for each column.

        Raises: SourceError.
        """
        values = sql.SQL(", ").join(self._cast(key) for key in keys)
        chosen = sql.SQL("({}) IN (VALUES {})").format(_list_names(self.key), values)
        return self._copy(columns, [chosen])

    def find_boundary(self, low: Key | None, high: Key | None, rows: int) -> Key | None:
        """The key of the row that is so many above `low`; None where fewer are up to `high`."""
        bounds = [self._bound(">", low), self._bound("<=", high)]
        found = self._copy(self.key, bounds, limit=1, offset=rows - 1)
        return tuple(column[0].as_py() for column in found) if len(found[0]) else None

    def _copy(
        self,
        columns: Sequence[str],
        bounds: Sequence[sql.Composable | None],
        *,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[pa.StringArray]:
        conditions = [one for one in (self._published.row_filter, *bounds) if one is not None]
        query = sql.SQL("COPY (SELECT {} FROM {} WHERE {} ORDER BY {}{}{}) TO STDOUT {}").format(
            _list_names(columns),
            self._published.rows_of,
            sql.SQL(" AND ").join(conditions or [sql.SQL("true")]),
            _list_names(self.key),
            sql.SQL("" if limit is None else " LIMIT {}").format(sql.Literal(limit)),
            sql.SQL(" OFFSET {}").format(sql.Literal(offset)),
            sql.SQL("(FORMAT csv, FORCE_QUOTE *)"),
        )
        with (
            source_errors(f"read {self.relation.table}"),
            self._connection.cursor() as cursor,
            cursor.copy(query) as copied,
        ):
            data = b"".join(copied)
        return _parse_csv(data, len(columns), self.relation.table)

    def _bound(self, comparison: str, key: Key | None) -> sql.Composable | None:
        if key is None:
            return None
        names = _list_names(self.key)
        return sql.SQL("({}) {} {}").format(names, sql.SQL(comparison), self._cast(key))

    def _cast(self, key: Key) -> sql.Composable:
        """A key as values of its columns' types, in parentheses."""
        types = [self.relation.columns[index].type_name for index in self.relation.key]
        values = [
            sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(type_name))
            for text, type_name in zip(key, types, strict=True)
        ]
        return sql.SQL("({})").format(sql.SQL(", ").join(values))


class ChunkReader:
    """One connection that reads one published table."""

    def __init__(self, source: SourceSettings, table: TableName) -> None:
        """Connect. Raises: SourceError, where the table is not published too."""
        self._source = source
        self._connection = open_connection(source, application_name="walgate backfill")
        try:
            self._published = _find_published(self._connection, source, table)
        except BaseException:
            self._connection.close()
            raise
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the table as it is until the block ends. Raises: SourceError."""
        table = self._published
        lock = sql.SQL("lock table {} in access share mode").format(table.rows_of)
        with source_errors(f"read {table.table}"), self._connection.transaction():
            with source_errors(f"lock {table.table}"):
                self._connection.execute(_SETTINGS)
                self._connection.execute(lock)
            yield

    def look(self) -> OpenRead:
        """Take the snapshot of the transaction that holds the lock. Raises: SourceError."""
        # Columns may have come since, or the publication have changed.
        published = _find_published(self._connection, self._source, self._published.table)
        with source_errors(f"look at {self._published.table}"):
            row = self._connection.execute(
                "select snapshot::text, pg_snapshot_xmax(snapshot)::xid::text,"
                " %s::regclass::oid::bigint from pg_current_snapshot() snapshot",
                (self._published.identifier.as_string(self._connection),),
            ).fetchone()
            assert row is not None
            snapshot, xid, oid = row
            columns = self._connection.execute(_COLUMNS, (oid,)).fetchall()
        announcement = _announce(published, oid, columns)
        relation = complete_relation(self._connection, announcement, previous=None)
        relation = replace(relation, published=self._read_membership(oid, xid))
        if not relation.key:
            raise SourceError(
                f"{relation.table} has no key by which its rows could be told apart",
                fix="give it a primary key",
                retry=Retry.AFTER_FIX,
            )
        return OpenRead(relation, snapshot, self._connection, published)

    def _read_membership(self, oid: int, xid: str) -> str:
        publications = self._source.publication
        return read_membership(self._connection, publications, oid, xid=int(xid), previous=None)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


def _find_published(
    connection: psycopg.Connection, source: SourceSettings, table: TableName
) -> PublishedTable:
    with source_errors("read the published tables"):
        major = connection.info.server_version // 10000
        found = read_published_tables(connection, source.publication, major=major, only=table)
    if not found:
        raise SourceError(
            f"{table} is not in publication {', '.join(source.publication)}",
            fix=f"add it with `walgate publish '{table}'`",
            retry=Retry.AFTER_FIX,
        )
    return found[0]


def estimate_size(connection: psycopg.Connection, table: TableName) -> tuple[int, int]:
    """About how many rows a table has, by its last ANALYZE or VACUUM, and its bytes on disk.

    Raises: SourceError.
    """
    name = sql.Identifier(table.schema, table.name).as_string(connection)
    with source_errors(f"look at {table}"):
        row = connection.execute(
            "select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint,"
            " coalesce(sum(pg_table_size(c.oid)), 0)::bigint"
            " from pg_class c where c.oid = %(name)s::regclass"
            " or c.oid in (select relid from pg_partition_tree(%(name)s::regclass) where isleaf)",
            {"name": name},
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def join_rows(columns: Sequence[pa.StringArray]) -> pa.ListArray:
    """Rows as lists of texts, from their columns."""
    width, count = len(columns), len(columns[0])
    order = np.arange(width * count).reshape(width, count).T.ravel()
    offsets = np.arange(0, width * count + 1, width, dtype=np.int32)
    texts = pa.concat_arrays(list(columns)).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(offsets), texts, type=_LIST)


def _announce(
    published: PublishedTable, oid: int, columns: Sequence[tuple[str, int, int]]
) -> Announcement:
    """What the stream would say of a table now."""
    is_full = published.identity is ReplicaIdentity.FULL
    identity = published.identity_columns
    return Announcement(
        oid,
        published.table,
        published.identity,
        tuple(
            AnnouncedColumn(name, type_oid, modifier, is_full or name in identity)
            for name, type_oid, modifier in columns
            if name in published.sent_columns
        ),
    )


def _parse_csv(data: bytes, width: int, table: TableName) -> list[pa.StringArray]:
    """Columns of COPY's CSV: an unquoted empty value is NULL, a row of one NULL an empty line."""
    if not data:
        return [pa.array([], pa.string()) for _ in range(width)]
    names = [str(index) for index in range(width)]
    try:
        parsed = csv.read_csv(
            pa.BufferReader(data),
            # One block: a value may be as long as all that was read.
            csv.ReadOptions(column_names=names, block_size=len(data), use_threads=False),
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as exc:
        raise SourceError(
            f"{table} holds a text that is not UTF-8",
            fix="mend the value in the source, or exclude its column in [tables]",
            retry=Retry.AFTER_FIX,
        ) from exc
    return [parsed.column(index).combine_chunks() for index in range(width)]


def _list_names(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)
