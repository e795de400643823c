"""Connections to the simulated server: of a backfill, and of capture to the catalog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from cdc_core.layout import DECODED_SCHEMA
from cdc_core.protocol.messages import AnnouncedColumn, Announcement
from cdc_core.source import catalog
from cdc_core.source.primary import History
from cdc_core.spooled import WHOLE, Key, Scope
from cdc_core.vocabulary import Relation, ReplicaIdentity, TableName
from tests.simulation.server import Change, Row, Server
from tests.simulation.walsender import COLUMNS
from tests.simulation.world import World

_VALUES = DECODED_SCHEMA.field("values").type


class SimulatedSteps:
    """The connection of a backfill that writes its steps."""

    def emit(self, message: str) -> None:
        """Write a step: a transaction of its own."""
        now, server = World.now, World.now.server
        name = str(json.loads(message)["step"])
        now.scheduler.pause(f"{name} takes an xid")
        transaction = server.begin("worker steps")
        server.write(transaction, Change("message", message=message))
        now.scheduler.pause(f"{name} is written")
        server.record_commit(transaction)
        server.end(transaction)
        now.touch()

    def take_xid(self) -> int:
        """Take an xid above all earlier ones, with a transaction that does nothing."""
        server = World.now.server
        transaction = server.begin("worker steps")
        xid = server.assign(transaction)
        server.end(transaction)
        return xid

    def read_snapshot(self) -> str:
        """Which transactions are seen now."""
        World.now.scheduler.pause("looks what is seen")
        return str(World.now.server.snapshot())

    def close(self) -> None:
        """Disconnect."""


@dataclass(frozen=True)
class SimulatedRead:
    """A table locked and seen by one snapshot."""

    relation: Relation
    snapshot: str
    rows: dict[str, Row]
    history: History
    order: tuple[str, ...] = ("id",)
    key: tuple[str, ...] = ("id",)
    by: tuple[str, ...] = ("id integer",)

    def find_boundary(self, low: Key | None, high: Key | None, rows: int) -> Key | None:
        """The key of the row that is so many above `low`."""
        keys = self._between(low, high)[rows - 1 : rows]
        return (keys[0],) if keys else None

    def read_rows(
        self,
        columns: Sequence[str],
        *,
        low: Key | None,
        high: Key | None,
        most_bytes: int | None = None,
    ) -> tuple[pa.ChunkedArray, bool]:
        """The rows above `low`, up to `high`, in order."""
        del columns, most_bytes
        World.now.scheduler.note(f"reads rows above {low} up to {high}")
        return _make_values([self.rows[key] for key in self._between(low, high)]), True

    def read_keys(self, columns: Sequence[str], *, keys: Sequence[Key]) -> pa.ChunkedArray:
        """The rows that have one of some keys."""
        del columns
        World.now.scheduler.note(f"reads rows {keys}")
        return _make_values([self.rows[key] for (key,) in keys if key in self.rows])

    def _between(self, low: Key | None, high: Key | None) -> list[str]:
        return [
            key
            for key in sorted(self.rows, key=int)
            if (low is None or int(key) > int(low[0]))
            and (high is None or int(key) <= int(high[0]))
        ]


class SimulatedReader:
    """One connection of a backfill that reads a table."""

    _count = 0

    def __init__(
        self,
        source: Any,
        table: TableName,
        scope: Scope = WHOLE,
        *,
        find_history: Callable[[], History | None],
    ) -> None:
        del source
        assert find_history() == _show_history()
        self._table = table.name
        self._scope = scope
        SimulatedReader._count += 1
        self._session = f"worker reader {SimulatedReader._count}"

    def explain_cost(self, *, rows: int | None) -> None:
        """A reading of this server writes no WAL."""
        del rows

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the table as it is, in one transaction; what it writes is committed at the end."""
        now, server = World.now, World.now.server
        with server.locked(self._table, self._session):
            self._open = server.begin(self._session)
            try:
                yield
                if self._open.xid is not None:
                    now.scheduler.pause("what the reader wrote is committed")
                    server.record_commit(self._open)
            finally:
                server.end(self._open)
                now.touch()

    def emit(self, message: str) -> None:
        """Write a step in the transaction that holds the lock."""
        now = World.now
        now.scheduler.pause(f"{json.loads(message)['step']} takes an xid")
        now.server.write(self._open, Change("message", message=message))

    def look(self) -> SimulatedRead:
        """Take a snapshot."""
        server = World.now.server
        snapshot = server.snapshot()
        announcement = announce(server, self._table)
        relation = complete(server, announcement, previous=None, xid=None)
        rows = server.read(self._table, snapshot)
        return SimulatedRead(relation, str(snapshot), rows, _show_history())

    def resolve_scope(self, opened: SimulatedRead) -> Scope:
        del opened
        return self._scope

    def estimate(self, opened: SimulatedRead) -> tuple[int, float | None]:
        return len(opened.rows), None

    def find_unordered(self, opened: SimulatedRead) -> str | None:
        del opened
        return None

    def interrupt(self) -> None:
        """End what is being read."""

    def close(self) -> None:
        """Disconnect."""


def _show_history() -> History:
    server = World.now.server
    return History(server.system, server.timeline)


class _Catalog:
    """The catalog's answers to the queries of `cdc_core.source.catalog`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rows: list[tuple[Any, ...]] = []

    def execute(self, query: str, parameters: dict[str, Any]) -> _Catalog:
        own = next(c for c in self._server.catalogs.values() if c.oid == parameters["oid"])
        assert query == catalog._COLUMNS
        xid = parameters["xid"]
        oldest = self._server.catalog_xmin(World.now.confirmed)
        is_newer = xid is not None and own.altered_by >= min(int(xid), oldest)
        self._rows = []
        for number, (name, oid) in enumerate(COLUMNS, 1):
            is_key = number == 1
            altered = own.altered_by if name == "v" else 1
            newer = is_newer and name == "v"
            row = (name, number, oid, -1, is_key, "text", None, False, 1 if is_key else None)
            more = (None, -1, altered, newer, False, False, own.storage, len(COLUMNS))
            self._rows.append((*row, *more))
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


def announce(server: Server, table: str) -> Announcement:
    """What the stream would say of a table."""
    columns = tuple(AnnouncedColumn(name, oid, -1, n == 0) for n, (name, oid) in enumerate(COLUMNS))
    name = TableName("public", table)
    return Announcement(server.catalogs[table].oid, name, ReplicaIdentity.DEFAULT, columns)


def complete(
    server: Server, announcement: Announcement, *, previous: Relation | None, xid: int | None
) -> Relation:
    """What the catalog makes of an announcement now."""
    connection = cast("Any", _Catalog(server))
    return catalog.complete_relation(connection, announcement, previous=previous, xid=xid)


def _make_values(rows: list[Row]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([list(row) for row in rows], _VALUES)], _VALUES)
