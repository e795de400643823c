"""Whether a table of the lake is what its source has, or was rightly halted; nothing else will do.

The order of things comes from PostgreSQL: a slot of test_decoding tells each transaction, the
tables that it changed, and where among these changes the schema changes stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa

from cdc_core.table_states import TableState
from cdc_core.vocabulary import encode_name
from spark_jobs.lake.ledger import StateRecord
from tests.end_to_end.random_schema_changes import REWRITTEN, Effect
from tests.end_to_end.random_source import OUTPUT, Mark, RandomSource, Row, Snapshot
from tests.postgres_server import Database
from tests.spark.given_back import give_back

_CHANGE = re.compile(r"table (.+?): (?:INSERT|UPDATE|DELETE|TRUNCATE):")
_MARK = re.compile(r"message: .* prefix: change, sz: \d+ content:(\d+)")
_NO_KEY = "has no key"
# What a table may be halted for where capture read a catalog newer than what it was told.
_AFTERWARDS = (
    "renamed|dropped|default that older rows|type of column|the key changed|rewritten|publi|no key"
)
# What a table may be halted for where a change that came before its first row seems to come later:
# a rewrite, or a column that was dropped and added again.
_SEEMS_LATER = f"{REWRITTEN}|since it was announced"


@dataclass(frozen=True)
class Transaction:
    """A committed transaction: its id, where it ends, the tables and marks in its order."""

    xid: int
    end_lsn: int
    events: tuple[str | int, ...]


@dataclass
class _Expected:
    """What must have become of a table; it follows the transactions one by one."""

    name: str
    armed: Mark | None = None  # What halts it once a row shows it.
    must: Mark | None = None  # What halts it for certain,
    place: tuple[int, int] = (0, 0)  # in the transaction that begins after, and ends at.
    may: list[Mark] = field(default_factory=list)
    shown: list[tuple[int, Snapshot]] = field(default_factory=list)
    is_published: bool = True
    is_hidden: bool = False  # Whether anything was not sent.
    may_seem_later: bool = False  # Whether a change came before the first row was sent.

    def rows_at(self, lsn: int) -> Snapshot:
        """The rows that the stream had shown at an LSN."""
        return max((s for s in self.shown if s[0] <= lsn), default=(0, Snapshot()), key=_end)[1]

    def follow(self, transaction: Transaction, source: RandomSource, before: int) -> None:
        """Take in a transaction; `before` is where the one before it ended."""
        changed, since = False, None
        for event in transaction.events:
            if isinstance(event, int):
                mark = source.marks[event]
                if mark.table == self.name:
                    since = since or mark
                    self._take_mark(mark, has_rows=changed or bool(self.shown))
            elif event == self.name and not self.is_published:
                self.is_hidden = True
            elif event == self.name:
                changed, since = True, None
                if self.armed is not None and self.must is None:
                    self.must, self.place = self.armed, (before, transaction.end_lsn)
        if changed:
            after = source.after[transaction.xid][self.name]
            self.shown.append((transaction.end_lsn, since.before if since else after))

    def _take_mark(self, mark: Mark, *, has_rows: bool) -> None:
        arms = mark.effect is Effect.HALTED and has_rows
        # The catalog does not tell whether a change came before the table's first transaction or
        # after it, until the slot's `catalog_xmin` has passed it.
        self.may_seem_later = self.may_seem_later or not has_rows
        if mark.effect is Effect.LEAVES:
            self.is_published = False
        elif mark.effect is Effect.RETURNS:
            self.is_published = True
            arms = self.is_hidden
        if arms:
            self.armed = self.armed or mark
        if not mark.is_certain or mark.effect in {Effect.EITHER, Effect.RETURNS}:
            self.may.append(mark)


def _end(shown: tuple[int, Snapshot]) -> int:
    return shown[0]


def read_transactions(
    database: Database, slot: str, leaves: Mapping[str, str]
) -> list[Transaction]:
    """Give all that was committed; `leaves` names the table that a partition is a part of."""
    query = "select lsn - '0/0', data from pg_logical_slot_peek_changes(%s, null, null)"
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        # The plugin of 18 ends the server at the abort of a subtransaction that was spilled.
        connection.execute("set logical_decoding_work_mem = '1GB'")
        rows = connection.execute(query, [slot]).fetchall()
    transactions: list[Transaction] = []
    events: list[str | int] = []
    for lsn, text in rows:
        if text.startswith("BEGIN "):
            events = []
        elif text.startswith("COMMIT "):
            transactions.append(Transaction(int(text.split()[1]), int(lsn), tuple(events)))
        elif mark := _MARK.match(text):
            events.append(int(mark[1]))
        elif change := _CHANGE.match(text):
            names = [name.partition(".")[2].strip('"') for name in change[1].split(", ")]
            events += [leaves.get(name, name) for name in names]
    return transactions


def explain(
    source: RandomSource,
    transactions: Iterable[Transaction],
    name: str,
    state: StateRecord | None,
    held: pa.Table | None,
) -> str | None:
    """Say what is wrong with a table; None where nothing is."""
    expected = _expect(source, transactions, name)
    halted = state is not None and state.state is TableState.HALTED
    if halted:
        assert state is not None
        wrong = _explain_halt(expected, state)
        if wrong is not None:
            return wrong
        truth = expected.rows_at(int(state.since_lsn or 0))
    elif expected.must is not None:
        return f"not halted, after {expected.must.what}"
    elif source.histories[name].table.is_published:
        truth = source.read(name)
    else:
        truth = expected.shown[-1][1] if expected.shown else Snapshot()
    with psycopg.connect(source.database.dsn, autocommit=True) as connection:
        connection.execute(OUTPUT.encode())
        rows = read_rows(connection, truth, held)
    if rows == list(truth.rows):
        return None
    where = f"halted at {state.since_lsn}: {state.reason}" if halted and state else "streaming"
    changes = [mark.what for mark in source.marks if mark.table == name]
    missing = [row for row in truth.rows if row not in rows]
    surplus = [row for row in rows if row not in truth.rows]
    return (
        f"{where}, after {changes}; of {len(truth.rows)} rows the lake lacks {len(missing)}, such"
        f" as {_shorten(missing)}, and has {len(surplus)} others, such as {_shorten(surplus)}"
    )


def read_rows(
    connection: psycopg.Connection, truth: Snapshot, held: pa.Table | None
) -> list[tuple[str | None, ...]]:
    """The lake's rows as texts of the source's columns, in order."""
    if held is None:
        return []
    missing = [name for name, _ in truth.columns if encode_name(name) not in held.column_names]
    if missing:
        return [("no column", *missing)]
    assert not any(held.column("_holes").to_pylist()), "a hole, though every value was sent"
    raws = [dict(raw or ()) for raw in held.column("_raw").to_pylist()]
    texts: list[list[str | None]] = []
    for name, kind in truth.columns:
        column = held.column(encode_name(name))
        values = zip(column.to_pylist(), raws, strict=True)
        texts.append(
            [
                _write(connection, kind, column.type, v, raw.get(encode_name(name)))
                for v, raw in values
            ]
        )
    return sorted(zip(*texts, strict=True), key=repr)


def _expect(source: RandomSource, transactions: Iterable[Transaction], name: str) -> _Expected:
    """Follow a table through the transactions."""
    expected = _Expected(name)
    if source.histories[name].table.identity == "n":
        nothing = "replica identity nothing"
        expected.armed = Mark(name, nothing, Effect.HALTED, _NO_KEY, Snapshot(), is_fresh=True)
    before = 0
    for transaction in transactions:
        expected.follow(transaction, source, before)
        before = transaction.end_lsn
    return expected


def _explain_halt(expected: _Expected, state: StateRecord) -> str | None:
    """Say why a table should not have been halted, or not there, or not for that."""
    reason, lsn = state.reason or "", int(state.since_lsn or 0)
    told = f"halted at {lsn}: {reason}"
    must = expected.must
    if must is not None and lsn >= expected.place[1]:
        return f"{told}; that is past {must.what}"
    if expected.may_seem_later and re.search(_SEEMS_LATER, reason):
        return None
    if must is None and not expected.may:
        return f"{told}; there was nothing to halt it for"
    if must is not None and not expected.may and lsn < expected.place[0]:
        return f"{told}; {must.what} comes later"
    reasons = [_AFTERWARDS] if expected.may else []
    reasons += [must.reason] if must is not None else []
    if not any(re.search(pattern, reason) for pattern in reasons):
        return f"{told}; expected {' or '.join(reasons)}"
    return None


def _write(
    connection: psycopg.Connection, kind: str, held: pa.DataType, value: Any, raw: str | None
) -> str | None:
    if raw is not None or value is None:
        return raw
    return str(value) if isinstance(value, str) else give_back(connection, kind, held, value)


def _shorten(rows: list[Row]) -> str:
    return repr([text if text is None else text[:40] for text in rows[0]] if rows else None)
