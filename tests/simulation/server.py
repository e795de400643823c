"""A PostgreSQL server as far as replication sees it: xids, snapshots, locks, and the WAL.

A commit has two steps, and others may run between them. First the server writes the commit record:
from then on the transaction can be streamed. Later, after a wait for standbys, the transaction
leaves the list of running ones and is visible. Until then it keeps its locks. Source: PostgreSQL's
RecordTransactionCommit and ProcArrayEndTransaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from cdc_core.backfill.visibility import Snapshot
from tests.simulation.scheduler import Scheduler

FIRST_XID = 700
FIRST_LSN = 0x1000
TIME_US = 800_000_000_000_000
RECORD_BYTES = 0x40

Row: TypeAlias = tuple[str, ...]
Wait: TypeAlias = Callable[[str, Callable[[], bool]], None]


@dataclass(frozen=True, slots=True)
class Change:
    """What a transaction did, as the stream carries it; `unsent` columns of `new` are not sent.

    `kind` is insert, update, delete, truncate, alter or message.
    """

    kind: str
    table: str = ""
    new: Row | None = None
    old: Row | None = None
    unsent: frozenset[int] = frozenset()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction in the WAL; `oldest` is the oldest that was in progress then."""

    xid: int
    commit_lsn: int
    end_lsn: int
    at_us: int
    changes: tuple[Change, ...]
    oldest: int


@dataclass(slots=True)
class Catalog:
    """What the catalog says of a table: which transaction altered a column last, and its files."""

    oid: int
    altered_by: int = FIRST_XID - 1
    storage: int = 0


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction in progress; it has an xid once it has written."""

    session: str
    xid: int | None = None
    changes: list[Change] = field(default_factory=list)
    is_recorded: bool = False


@dataclass(slots=True)
class _Version:
    """A row as a transaction left it; None where it is gone."""

    xid: int
    table: str
    key: str
    row: Row | None


class Server:
    """One server with its tables, all of them keyed by their first column."""

    def __init__(self, scheduler: Scheduler, tables: tuple[str, ...], *, system: str = "1") -> None:
        """The tables are empty."""
        self._scheduler = scheduler
        self.system = system
        self.timeline = 1
        self.catalogs = {table: Catalog(16384 + n) for n, table in enumerate(tables)}
        self.next_xid = FIRST_XID
        self._completed = FIRST_XID - 1
        self.running: set[int] = set()
        self.lsn = FIRST_LSN
        self.clock_us = TIME_US
        self.wal: list[Committed] = []
        self._versions: list[_Version] = []
        self._row_locks: dict[tuple[str, str], Transaction] = {}
        self._table_locks: dict[str, list[tuple[object, str]]] = {table: [] for table in tables}
        self._open: list[Transaction] = []

    def fill(self, table: str, rows: list[Row]) -> None:
        """Rows that were there before anything was replicated."""
        self._versions += [_Version(FIRST_XID - 1, table, row[0], row) for row in rows]

    def begin(self, session: str) -> Transaction:
        """Open a transaction of a session."""
        transaction = Transaction(session)
        self._open.append(transaction)
        return transaction

    def assign(self, transaction: Transaction) -> int:
        """Give a transaction its xid, once."""
        if transaction.xid is None:
            transaction.xid = self.next_xid
            self.running.add(self.next_xid)
            self.next_xid += 1
        return transaction.xid

    def write(self, transaction: Transaction, change: Change) -> None:
        """Change something; the locks for it are held."""
        xid = self.assign(transaction)
        transaction.changes.append(change)
        if change.kind == "truncate":
            self._versions = [v for v in self._versions if v.table != change.table]
            self.catalogs[change.table].storage = 90_000 + xid
        elif change.kind == "alter":
            self._rewrite(change.table, xid)
        elif change.kind != "message":
            if change.old is not None and (change.new is None or change.new[0] != change.old[0]):
                self._versions.append(_Version(xid, change.table, change.old[0], None))
            if change.new is not None:
                self._versions.append(_Version(xid, change.table, change.new[0], change.new))

    def record_commit(self, transaction: Transaction) -> int:
        """Write the commit record: from here on the transaction is streamed; its end LSN."""
        assert transaction.xid is not None
        transaction.is_recorded = True
        commit_lsn = self.lsn + RECORD_BYTES * len(transaction.changes)
        self.lsn = commit_lsn + RECORD_BYTES
        self.clock_us += 1000
        changes = tuple(transaction.changes)
        oldest = min(self.running)
        self.wal.append(
            Committed(transaction.xid, commit_lsn, self.lsn, self.clock_us, changes, oldest)
        )
        return self.lsn

    def catalog_xmin(self, confirmed: int) -> int:
        """The oldest transaction that was still running at the confirmed LSN of a slot."""
        passed = [one.oldest for one in self.wal if one.end_lsn <= confirmed]
        return passed[-1] if passed else FIRST_XID

    def end(self, transaction: Transaction) -> None:
        """End a transaction: it leaves the list of running ones and loses its locks. Once only."""
        if transaction not in self._open:
            return
        if transaction.xid is not None:
            self.running.discard(transaction.xid)
            self._completed = max(self._completed, transaction.xid)
            if not transaction.is_recorded:
                self._versions = [v for v in self._versions if v.xid != transaction.xid]
        self._row_locks = {k: t for k, t in self._row_locks.items() if t is not transaction}
        self.unlock_tables(transaction)
        self._open.remove(transaction)

    def disconnect_all(self, process: str) -> None:
        """End what a dead process has open: rolled back, unless its commit record is written."""
        for transaction in [one for one in self._open if one.session.startswith(process)]:
            self.end(transaction)
        for table, locks in self._table_locks.items():
            self._table_locks[table] = [
                (by, mode) for by, mode in locks if not str(by).startswith(process)
            ]

    def snapshot(self) -> Snapshot:
        """Which transactions a query sees now. Source: GetSnapshotData."""
        xmax = self._completed + 1
        running = frozenset(xid for xid in self.running if xid < xmax)
        return Snapshot(min(running, default=xmax), xmax, running)

    def read(self, table: str, snapshot: Snapshot, own: int | None = None) -> dict[str, Row]:
        """The rows of a table that a snapshot sees, by key."""
        rows: dict[str, Row] = {}
        for version in self._versions:
            xid = version.xid
            is_seen = xid == own or (xid < snapshot.xmax and xid not in snapshot.running)
            if version.table != table or not is_seen:
                continue
            if version.row is None:
                rows.pop(version.key, None)
            else:
                rows[version.key] = version.row
        return rows

    def read_newest(self, table: str, key: str) -> Row | None:
        """The newest version of a row, as the holder of its lock sees it."""
        found = [v.row for v in self._versions if v.table == table and v.key == key]
        return found[-1] if found else None

    def is_row_free(self, table: str, key: str, transaction: Transaction) -> bool:
        """Whether no other transaction holds a row."""
        return self._row_locks.get((table, key), transaction) is transaction

    def lock_row(self, table: str, key: str, transaction: Transaction) -> None:
        """Hold a row, which is free."""
        assert self.is_row_free(table, key, transaction)
        self._row_locks[table, key] = transaction

    def is_table_free(self, table: str, by: object, mode: str) -> bool:
        """Whether a table can be locked: `exclusive` conflicts with all modes, others with it."""
        others = [held for owner, held in self._table_locks[table] if owner is not by]
        return not others if mode == "exclusive" else "exclusive" not in others

    def lock_table(self, table: str, by: object, mode: str) -> None:
        """Lock a table, which is free."""
        assert self.is_table_free(table, by, mode)
        self._table_locks[table].append((by, mode))

    def unlock_tables(self, by: object) -> None:
        """Give back the table locks of a session or transaction."""
        for table, locks in self._table_locks.items():
            self._table_locks[table] = [(owner, mode) for owner, mode in locks if owner is not by]

    @contextmanager
    def locked(self, table: str, by: object) -> Iterator[None]:
        """Hold a table as it is, as a reader does."""
        wait = f"locks {table}"
        self._scheduler.wait(wait, lambda: self.is_table_free(table, by, "shared"))
        self.lock_table(table, by, "shared")
        try:
            yield
        finally:
            self.unlock_tables(by)

    def _rewrite(self, table: str, xid: int) -> None:
        """ALTER COLUMN … TYPE … USING with the same type: new values, but no row changes."""
        for version in self._versions:
            if version.table == table and version.row is not None:
                key, value, *rest = version.row
                version.row = (key, f"{value}!", *rest)
        self.catalogs[table].altered_by = xid
        self.catalogs[table].storage = 90_000 + xid
