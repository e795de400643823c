"""Reads a table in chunks: under a lock, in one snapshot, in the form that the stream would send.

Walgate takes the lock first: a rewrite between snapshot and read would make the read empty. Under
the lock, no ALTER and no TRUNCATE can come between the rows and the chunk's watermark. The lock is
the weakest one: no reader and no writer waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from cdc_core.errors import Retry, SourceError
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.protocol.copied import parse_copied
from cdc_core.protocol.messages import AnnouncedColumn, Announcement
from cdc_core.settings import SourceSettings
from cdc_core.source import marks
from cdc_core.source.catalog import complete_relation
from cdc_core.source.collations import describe_collations
from cdc_core.source.connection import source_errors
from cdc_core.source.copying import copy_out, widen_buffer
from cdc_core.source.first_reading import find_costly_readings
from cdc_core.source.key_order import find_unordered
from cdc_core.source.membership import read_membership
from cdc_core.source.primary import (
    HISTORY,
    FindHistory,
    History,
    require_history,
)
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.reading_connection import choose_answer_timeout, connect_reader, find_published
from cdc_core.source.scopes import (
    bound_key,
    estimate_rows,
    list_names,
    resolve_scope,
    write_conditions,
    write_values,
)
from cdc_core.spooled import WHOLE, Key, Scope
from cdc_core.vocabulary import Relation, ReplicaIdentity, TableName

_LIST = DECODED_SCHEMA.field("values").type
# The planner estimates a range of a key by its first column alone, so it may read and sort the
# whole table for each chunk. Not set with a condition: an index for the condition may be better.
_IN_ORDER = "set enable_sort = off; set enable_incremental_sort = off"
_INTERRUPT_S = 5.0
# A table without statistics counts as empty below this size: the index for TOAST alone takes a
# page. From this size on, the planner estimates the rows by the size.
_EMPTY_BYTES = 3 * 8192
_COLUMNS = """
select a.attname::text, a.atttypid::bigint, a.atttypmod, a.attcollation::bigint
from pg_attribute a where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""


@dataclass(frozen=True, slots=True)
class OpenRead:
    """A locked table as one snapshot shows it, until the transaction ends.

    `relation` is what the stream would announce now. `snapshot` has PostgreSQL's text form.
    `history` is the history of the server that Walgate reads.
    """

    relation: Relation
    snapshot: str
    history: History
    _connection: psycopg.Connection
    _published: PublishedTable
    _scope: Scope
    _answer_s: float
    # By column name, only for key columns that have a collation.
    _collations: Mapping[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns that identify a row, in key order."""
        return tuple(self.relation.columns[index].name for index in self.relation.key)

    @property
    def order(self) -> tuple[str, ...]:
        """The key's columns in the order in which ranges are cut and rows arrive.

        It is the order of the index on exactly these columns, or key order without such an index.
        """
        index = self._published.key_index
        is_same = index is not None and {*index.columns} == {*self.key}
        return index.columns if index is not None and is_same else self.key

    @property
    def by(self) -> tuple[str, ...]:
        """The columns of `order` with types and collations, which give range bounds their order."""
        types = {column.name: column.type_name for column in self.relation.columns}
        return tuple(
            " ".join((name, types[name], *filter(None, [self._collations.get(name)])))
            for name in self.order
        )

    def read_rows(
        self,
        columns: Sequence[str],
        *,
        low: Key | None,
        high: Key | None,
        most_bytes: int | None = None,
    ) -> tuple[pa.ChunkedArray, bool]:
        """Read the rows above `low` and up to `high`, in order, each as the texts of its columns.

        The read is cut off after the row that reaches `most_bytes`; then the second value is False.
        Raises: SourceError.
        """
        return self._copy(columns, self._bound(low, high), most_bytes=most_bytes)

    def read_keys(self, columns: Sequence[str], *, keys: Sequence[Key]) -> pa.ChunkedArray:
        """Read the rows that have one of `keys`, in any order, each as the texts of its columns.

        Raises: SourceError.
        """
        values = [sql.SQL("({})").format(write_values(self.relation, key)) for key in keys]
        chosen = sql.SQL("({}) IN (VALUES {})").format(
            list_names(self.key), sql.SQL(", ").join(values)
        )
        return self._copy(columns, [chosen], is_ordered=False)[0]

    def find_boundary(self, low: Key | None, high: Key | None, rows: int) -> Key | None:
        """Find the key of row number `rows` above `low`; None if fewer rows lie up to `high`."""
        found, _ = self._copy(self.order, self._bound(low, high), limit=1, offset=rows - 1)
        return tuple(found[0].as_py()) if len(found) else None

    def _copy(
        self,
        columns: Sequence[str],
        bounds: Sequence[sql.Composable],
        *,
        limit: int | None = None,
        offset: int = 0,
        most_bytes: int | None = None,
        is_ordered: bool = True,
    ) -> tuple[pa.ChunkedArray, bool]:
        row_filter = self._published.row_filter
        conditions: list[sql.Composable] = [] if row_filter is None else [row_filter]
        conditions += [*write_conditions(self.relation, self._scope), *bounds]
        order = sql.SQL(" ORDER BY {}").format(list_names(self.order))
        query = sql.SQL("COPY (SELECT {} FROM {} WHERE {}{}{}{}) TO STDOUT").format(
            list_names(columns),
            self._published.rows_of,
            sql.SQL(" AND ").join(conditions or [sql.SQL("true")]),
            order if is_ordered else sql.SQL(""),
            sql.SQL("" if limit is None else " LIMIT {}").format(sql.Literal(limit)),
            sql.SQL(" OFFSET {}").format(sql.Literal(offset)),
        )
        pieces: list[pa.ListArray] = []

        def take(data: memoryview) -> None:
            pieces.append(_parse_rows(data, len(columns), self.relation.table))

        has_condition = self._scope.where is not None
        with source_errors(f"read {self.relation.table}", has_condition=has_condition):
            is_whole = copy_out(
                self._connection, query, take, most_bytes=most_bytes, answer_s=self._answer_s
            )
        return pa.chunked_array(pieces, _LIST), is_whole

    def _bound(self, low: Key | None, high: Key | None) -> list[sql.Composable]:
        return [
            bound_key(self.relation, comparison, key, names=self.order)
            for comparison, key in ((">", low), ("<=", high))
            if key is not None
        ]


class ChunkReader:
    """One connection that reads one published table, or a part of it."""

    def __init__(
        self,
        source: SourceSettings,
        table: TableName,
        scope: Scope = WHOLE,
        *,
        find_history: FindHistory,
    ) -> None:
        """Connect. Raises: SourceError, also if the table is not published."""
        self._source = source
        self._scope = scope
        self._find_history = find_history
        self._answer_s = choose_answer_timeout(source)
        self._connection, self._published = connect_reader(source, table, find_history=find_history)
        try:
            with source_errors(f"read {table}"):
                widen_buffer(self._connection)
                if scope.where is None and self._published.row_filter is None:
                    self._connection.execute(_IN_ORDER)
        except BaseException:
            self._connection.close()
            raise
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the table against ALTER and TRUNCATE until the block ends. Raises: SourceError."""
        table = self._published
        lock = sql.SQL("lock table {} in access share mode").format(table.rows_of)
        with source_errors(f"read {table.table}"), self._connection.transaction():
            with source_errors(f"lock {table.table}"):
                self._connection.execute(lock)
            yield

    def emit(self, message: str) -> None:
        """Write a mark that enters the WAL when the block that holds the lock ends.

        The server writes the commit record before it releases the lock. If the server ended the
        session, it writes nothing. Raises: SourceError.
        """
        marks.emit_mark(self._connection, message)

    def look(self) -> OpenRead:
        """Take the snapshot of the transaction that holds the lock; describe the table in it.

        Raises: SourceError.
        """
        # Since the connection was opened, the columns or the publication may have changed.
        published = find_published(self._connection, self._source, self._published.table)
        with source_errors(f"look at {self._published.table}"):
            name = self._published.identifier.as_string(self._connection)
            row = self._connection.execute(
                sql.SQL(
                    "select snapshot::text, pg_snapshot_xmax(snapshot)::xid::text,"
                    " {}::regclass::oid::bigint, {} from pg_current_snapshot() snapshot"
                ).format(sql.Literal(name), HISTORY)
            ).fetchone()
            assert row is not None
            snapshot, xid, oid, *facts = row
        history = History(*facts)
        # A connection that was opened before a failover still answers, from the old server.
        require_history(self._connection, history, self._find_history())
        with source_errors(f"look at {self._published.table}"):
            columns = self._connection.execute(_COLUMNS, (oid,)).fetchall()
        announcement = _announce(published, oid, columns)
        relation = complete_relation(self._connection, announcement, previous=None)
        relation = replace(relation, published=self._read_membership(oid, xid))
        if not relation.key:
            raise SourceError(
                f"{relation.table} has no key, so Walgate cannot identify its rows",
                fix="give it a primary key",
                retry=Retry.AFTER_FIX,
            )
        return OpenRead(
            relation,
            snapshot,
            history,
            self._connection,
            published,
            self._scope,
            self._answer_s,
            self._read_collations(relation, {name: number for name, *_, number in columns}),
        )

    def resolve_scope(self, opened: OpenRead) -> Scope:
        """Check the scope; give it with its bounds as the server writes them.

        Raises: ConfigurationError, SourceError.
        """
        table = self._published.rows_of
        return resolve_scope(self._connection, table, opened.relation, self._scope)

    def estimate(self, opened: OpenRead) -> tuple[int, float | None]:
        """Estimate the rows of the scope, by statistics or the planner, and the bytes of a row.

        The bytes are bytes on disk; None without statistics. Raises: SourceError.
        """
        rows, size = estimate_size(self._connection, self._published.table)
        row_bytes = size / rows if rows else None
        if not self._scope.is_whole or (not rows and size >= _EMPTY_BYTES):
            table = self._published.rows_of
            rows = estimate_rows(self._connection, table, opened.relation, self._scope)
        return rows, row_bytes

    def explain_cost(self, *, rows: int | None) -> str | None:
        """Explain how much WAL a first reading of `rows` rows may write; None if the slot has room.

        Raises: SourceError.
        """
        found = find_costly_readings(self._connection, [self._published], rows=rows)
        return None if found is None else found.explain()

    def find_unordered(self, opened: OpenRead) -> str | None:
        """Explain why Spark cannot find the rows within the scope's bounds; None if it can.

        Raises: SourceError.
        """
        return find_unordered(self._connection, opened.relation, self._scope)

    def interrupt(self) -> None:
        """Cancel the running read, from another thread."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_INTERRUPT_S)

    def _read_collations(self, relation: Relation, numbers: Mapping[str, int]) -> dict[str, str]:
        """Describe the collation of each key column that has one."""
        names = [relation.columns[index].name for index in relation.key]
        own = {name: numbers[name] for name in names if numbers[name]}
        described = describe_collations(self._connection, set(own.values()))
        return {name: described[number] for name, number in own.items()}

    def _read_membership(self, oid: int, xid: str) -> str:
        publications = self._source.publication
        return read_membership(self._connection, publications, oid, xid=int(xid), previous=None)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


def estimate_size(connection: psycopg.Connection, table: TableName) -> tuple[int, int]:
    """Estimate a table's rows, by its last ANALYZE or VACUUM, and read its bytes on disk.

    Raises: SourceError.
    """
    name = sql.Identifier(table.schema, table.name).as_string(connection)
    with source_errors(f"look at {table}"):
        row = connection.execute(
            "select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint,"
            " coalesce(sum(pg_table_size(c.oid)), 0)::bigint"
            " from pg_class c where c.oid = to_regclass(%(name)s)"
            " or c.oid in"
            " (select relid from pg_partition_tree(to_regclass(%(name)s)) where isleaf)",
            {"name": name},
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def join_rows(columns: Sequence[pa.StringArray]) -> pa.ListArray:
    """Make rows, each a list of texts, from columns of texts."""
    width, count = len(columns), len(columns[0])
    order = np.arange(width * count).reshape(width, count).T.ravel()
    offsets = np.arange(0, width * count + 1, width, dtype=np.int32)
    texts = pa.concat_arrays(list(columns)).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(offsets), texts, type=_LIST)


def _announce(
    published: PublishedTable, oid: int, columns: Sequence[tuple[str, int, int, int]]
) -> Announcement:
    """Make the announcement that the stream would send of a table now."""
    is_full = published.identity is ReplicaIdentity.FULL
    identity = published.identity_columns
    return Announcement(
        oid,
        published.table,
        published.identity,
        tuple(
            AnnouncedColumn(name, type_oid, modifier, is_full or name in identity)
            for name, type_oid, modifier, _ in columns
            if name in published.sent_columns
        ),
    )


def _parse_rows(data: memoryview, width: int, table: TableName) -> pa.ListArray:
    try:
        texts = parse_copied(data)
    except pa.ArrowInvalid as exc:
        raise SourceError(
            f"{table} holds a text that is not UTF-8",
            fix="correct the value in the source, or exclude its column in [tables]",
            retry=Retry.AFTER_FIX,
        ) from exc
    offsets = np.arange(0, len(texts) + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), texts, type=_LIST)
