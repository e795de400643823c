"""Random transactions of several connections, interleaved, with schema changes among them.

Whoever drives the source notes what the judge cannot see afterwards: the rows of each table after
each commit, and before each schema change; a message in the WAL marks where the change stands.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import psycopg
from psycopg import errors

from tests.end_to_end.random_columns import quote
from tests.end_to_end.random_schema_changes import MADE_AGAIN, Change, Effect, draw_change
from tests.end_to_end.random_tables import CONNECTIONS, RandomTable
from tests.postgres_server import Database

# How capture reads, so that a text here is the text there.
OUTPUT = (
    "set datestyle = iso; set intervalstyle = postgres; set timezone = utc;"
    " set extra_float_digits = 3; set bytea_output = hex; set lock_timeout = '20s'"
)
# Below are the keys that statements draw.
FIRST_FRESH_KEY = 1000
# No table is named so: who has changed it keeps others waiting.
_PUBLICATION = "the publication"
_COLUMNS = (
    "select attname::text, format_type(atttypid, atttypmod) from pg_attribute"
    " where attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = ''"
    " order by attnum"
)
_REFUSED = (errors.UniqueViolation, errors.ObjectNotInPrerequisiteState)
Row = tuple[str | None, ...]


@dataclass(frozen=True)
class Snapshot:
    """A table's columns with their types, and its rows as texts, in order."""

    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass
class Mark:
    """A schema change that was committed: what must come of it, and the rows just before it.

    `is_certain` says that capture reads the catalog as this change left it.
    """

    table: str
    what: str
    effect: Effect
    reason: str
    before: Snapshot
    is_fresh: bool
    is_certain: bool = False


@dataclass
class _History:
    """One table, and what capture has seen of its schema changes."""

    table: RandomTable
    fate: bool  # Whether a change that halts it may come.
    unseen: list[Mark] = field(default_factory=list)
    is_dirty: bool = False  # Whether anything happened to it that capture may not have seen.
    is_doomed: bool = False


@dataclass
class _Session:
    """One connection, and what its open transaction touches."""

    connection: psycopg.Connection
    number: int
    touched: set[str] = field(default_factory=set)
    saved: dict[str, RandomTable] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    alone: set[str] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE


class RandomSource:
    """Random histories on one database, a table each."""

    def __init__(
        self, database: Database, rng: random.Random, tables: list[RandomTable], *, listed: bool
    ) -> None:
        """Make the tables; `listed` says that the publication names each of them."""
        self.database = database
        self.listed = listed
        self.histories = {t.name: _History(t, rng.random() < 0.5) for t in tables}
        self.after: dict[int, dict[str, Snapshot]] = {}
        self.marks: list[Mark] = []
        self.committed = 0
        self._is_shown = False
        self._rng = rng
        self._next_key = FIRST_FRESH_KEY
        self.reader = self._connect()
        self.reader.autocommit = True
        self._sessions = [_Session(self._connect(), i) for i in range(CONNECTIONS)]
        for table in tables:
            for statement in table.make():
                self._run(self.reader, statement)

    @property
    def tables(self) -> list[RandomTable]:
        """The tables as they are now."""
        return [history.table for history in self.histories.values()]

    def change_some(self, share: float) -> None:
        """A schema change of some tables, each in a transaction of its own."""
        for history in self.histories.values():
            if self._rng.random() < share:
                session = self._rng.choice(self._sessions)
                self._change_schema(session, history)
                self._end(session, commit=self._rng.random() < 0.9)

    def take_steps(self, steps: int) -> None:
        """So many statements, commits and rollbacks, of whichever connection."""
        for _ in range(steps):
            self._step(self._rng.choice(self._sessions))

    def write_some(self, steps: int) -> None:
        """So many statements that change rows, and no table's shape."""
        for _ in range(steps):
            session = self._rng.choice(self._sessions)
            free = [h for h in self.histories.values() if self._is_free(h.table.name, session)]
            history = self._rng.choice(free)
            drawn = history.table.draw_statements(self._rng, session.number)
            self._write(session, history, drawn)

    def settle(self) -> None:
        """End every open transaction."""
        for session in self._sessions:
            if session.is_open:
                self._end(session, commit=self._rng.random() < 0.8)

    def show(self) -> None:
        """Write a row to every published table, so that the stream shows what it is now."""
        self._is_shown = True
        for history in self.histories.values():
            if history.table.is_published:
                session = self._sessions[0]
                self._show(session, history)
                self._end(session, commit=True)

    def note_seen(self) -> None:
        """Take note that capture has staged all that is committed, and was shown every table."""
        for history in self.histories.values():
            history.is_dirty = False
            if history.unseen and history.table.is_published:
                if len(history.unseen) == 1:
                    history.unseen[0].is_certain = history.unseen[0].is_fresh
                history.unseen = []

    def read(self, table: str, connection: psycopg.Connection | None = None) -> Snapshot:
        """A table's columns and rows as a connection sees them."""
        connection = connection or self.reader
        columns = tuple(connection.execute(_COLUMNS, [quote(table)]).fetchall())
        names = ", ".join(quote(name) for name, _ in columns)
        copy = f"copy (select {names} from {quote(table)}) to stdout"
        with connection.cursor() as cursor, cursor.copy(copy.encode()) as rows:
            return Snapshot(columns, tuple(sorted(rows.rows(), key=repr)))

    def close(self) -> None:
        """Disconnect."""
        for connection in (self.reader, *(s.connection for s in self._sessions)):
            connection.close()

    # What one connection does.

    def _step(self, session: _Session) -> None:
        rng = self._rng
        if session.is_open and rng.random() < 0.25:
            self._end(session, commit=rng.random() < 0.85)
            return
        free = [h for h in self.histories.values() if self._is_free(h.table.name, session)]
        if not free:
            return
        history = rng.choice(free)
        chosen = rng.random()
        if chosen < 0.02 and self._is_unused(history.table.name, session):
            self._change_schema(session, history)
        elif chosen < 0.04 and self._is_unused(history.table.name, session):
            self._truncate(session, history)
        elif chosen < 0.05:
            self._fill(session, history)
        elif chosen < 0.06 and self.listed and self._is_unused(history.table.name, session):
            self._change_publication(session, history)
        else:
            self._write(session, history, history.table.draw_statements(rng, session.number))

    def _write(self, session: _Session, history: _History, statements: Iterable[str]) -> None:
        """Run statements, now and then in a savepoint; a key that is taken undoes something."""
        rng, connection = self._rng, session.connection
        session.touched.add(history.table.name)
        history.is_dirty = True
        is_saved = rng.random() < 0.5
        if is_saved:
            connection.execute("savepoint s")
        try:
            for statement in statements:
                self._run(connection, statement)
        except _REFUSED:
            if is_saved:
                connection.execute("rollback to savepoint s")
            else:
                self._end(session, commit=False)
            return
        if is_saved:
            connection.execute(rng.choice(("release s", "release s", "rollback to savepoint s")))

    def _truncate(self, session: _Session, history: _History) -> None:
        session.alone.add(history.table.name)
        history.table.is_rewritten = True
        for mark in (*history.unseen, *session.marks):
            mark.is_fresh = False
        table = history.table.quoted
        self._write(session, history, [f"truncate {table}{self._rng.choice(('', ' cascade'))}"])

    def _fill(self, session: _Session, history: _History) -> None:
        """A transaction that the server spills: more than a row or two, of long values."""
        first, rows = self._next_key + 1, 40
        self._next_key += rows
        drawn = history.table.fill(self._rng, session.number, first, rows)
        self._write(session, history, drawn)
        numbers = f"o = {session.number}"
        if history.table.identity != "n":
            gone = f"delete from {history.table.quoted} where {numbers}"
            self._write(session, history, [gone] if self._rng.random() < 0.8 else [])

    def _change_schema(self, session: _Session, history: _History) -> None:
        if history.unseen or history.table.name in session.touched:
            # A change that is taken back before any row shows it would never have been.
            self._show(session, history)
        halting = history.fate and not history.is_doomed and self._rng.random() < 0.6
        saved = history.table.copy()
        change = draw_change(self._rng, history.table, halting=halting)
        is_made_again = change is not None and change.reason == MADE_AGAIN
        if change is None or (is_made_again and not self._is_free(_PUBLICATION, session)):
            history.table = saved
            return
        session.saved.setdefault(history.table.name, saved)
        self._run_change(session, history, change)

    def _change_publication(self, session: _Session, history: _History) -> None:
        """Take a table out of the publication, or put it back, once the lake is to know it."""
        table = history.table
        if not self._is_shown or not self._is_free(_PUBLICATION, session):
            return
        session.saved.setdefault(table.name, table.copy())
        session.alone.add(_PUBLICATION)
        out = table.is_published
        table.is_published = not out
        statement = f"alter publication walgate {'drop' if out else 'add'} table {table.quoted}"
        effect = Effect.LEAVES if out else Effect.RETURNS
        self._run_change(session, history, Change([statement], effect, "publi"))

    def _run_change(self, session: _Session, history: _History, change: Change) -> None:
        name, connection = history.table.name, session.connection
        connection.execute(f"lock table {quote(name)}".encode())
        session.alone.add(name)
        session.touched.add(name)
        before = self.read(name, connection)
        for statement in change.statements:
            self._run(connection, statement)
        if change.reason == MADE_AGAIN and self.listed and history.table.is_published:
            session.alone.add(_PUBLICATION)
            self._run(connection, f"alter publication walgate add table {quote(name)}")
        mark = Mark(
            name,
            "; ".join(change.statements),
            change.effect,
            change.reason,
            before,
            not history.is_dirty and not history.unseen,
        )
        self.marks.append(mark)
        content = str(len(self.marks) - 1)
        connection.execute("select pg_logical_emit_message(true, 'change', %s)", [content])
        session.marks.append(mark)
        history.is_dirty = True
        if self._rng.random() < 0.6:
            drawn = history.table.draw_statements(self._rng, session.number)
            self._write(session, history, drawn)

    def _end(self, session: _Session, *, commit: bool) -> None:
        """End a transaction; note what a commit left."""
        connection = session.connection
        xid = None
        try:
            if not commit:
                connection.rollback()
            else:
                xid = self._commit(connection)
        except errors.UniqueViolation:
            connection.rollback()
            commit = False
        if not commit:
            for name, saved in session.saved.items():
                self.histories[name].table = saved
        elif xid is not None:
            self.committed += 1
            self.after[xid] = {name: self.read(name) for name in session.touched}
            for mark in session.marks:
                history = self.histories[mark.table]
                history.unseen.append(mark)
                history.is_doomed |= mark.effect is Effect.HALTED
        session.touched, session.saved, session.marks, session.alone = set(), {}, [], set()

    def _show(self, session: _Session, history: _History) -> None:
        """Insert a row that nothing else touches."""
        self._next_key += 1
        session.touched.add(history.table.name)
        history.is_dirty = True
        for statement in history.table.fill(self._rng, session.number, self._next_key, 1):
            self._run(session.connection, statement)

    def _is_free(self, table: str, session: _Session) -> bool:
        return not any(table in other.alone for other in self._sessions if other is not session)

    def _is_unused(self, table: str, session: _Session) -> bool:
        return not any(table in other.touched for other in self._sessions if other is not session)

    def _connect(self) -> psycopg.Connection:
        connection = psycopg.connect(self.database.dsn)
        connection.execute(OUTPUT.encode())
        connection.commit()
        return connection

    @staticmethod
    def _run(connection: psycopg.Connection, statement: str) -> None:
        connection.execute(statement.encode())

    @staticmethod
    def _commit(connection: psycopg.Connection) -> int | None:
        """Commit; the transaction's id as the log has it, None if it wrote nothing."""
        query = "select (pg_current_xact_id_if_assigned()::text::numeric % 4294967296)::bigint"
        row = connection.execute(query).fetchone()
        connection.commit()
        return None if row is None else row[0]
