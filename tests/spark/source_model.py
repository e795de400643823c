"""A PostgreSQL table in miniature: random transactions, what the stream says of them, what is true.

Imports nothing of the project. A row's `big` value is stored out of line where it is long, so an
update that does not touch it sends it as unchanged. Under replica identity full the whole old row
is sent; under default the old key, where the key changed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

LONG = "L" * 8


@dataclass
class Row:
    key: tuple[str, ...]
    values: dict[str, str | None]

    def texts(self, columns: list[str], keys: list[str]) -> list[str | None]:
        named = dict(zip(keys, self.key, strict=True)) | self.values
        return [named[column] for column in columns]


@dataclass
class Entry:
    """One row of the log, as the stream announces it."""

    table: str
    op: str
    values: list[str | None] | None = None
    unchanged: list[int] | None = None
    old_values: list[str | None] | None = None
    relation: int = 0


@dataclass
class SourceTable:
    """A table with its rows, its columns, and the entries of the open transaction."""

    name: str
    identity: str  # d, f
    deferrable: bool = False
    keys: list[str] = field(default_factory=lambda: ["k"])
    columns: list[str] = field(default_factory=lambda: ["k", "n", "v", "big"])
    key_form: str = "{}"  # How a number is written as a key.
    rows: list[Row] = field(default_factory=list)
    relation: int = 0

    def make_key(self, number: int) -> tuple[str, ...]:
        if len(self.keys) == 1:
            return (self.key_form.format(number),)
        return (str(number // 7), self.key_form.format(number % 7))

    def truth(self) -> dict[tuple[str, ...], list[str | None]]:
        rows = {row.key: row.texts(self.columns, self.keys) for row in self.rows}
        assert len(rows) == len(self.rows), "a key is unique at the end of a transaction"
        return rows

    def insert(self, key: tuple[str, ...], values: dict[str, str | None]) -> Entry:
        row = Row(key, {c: values.get(c) for c in self.columns if c not in self.keys})
        self.rows.append(row)
        return self._entry("insert", values=row.texts(self.columns, self.keys))

    def update(self, row: Row, values: dict[str, str | None], key: tuple[str, ...] | None) -> Entry:
        old = row.texts(self.columns, self.keys)
        moved = key is not None and key != row.key
        stored_out = [c for c, v in row.values.items() if v is not None and v.startswith(LONG)]
        unchanged = [self.columns.index(c) for c in stored_out if c not in values]
        if key is not None:
            row.key = key
        row.values |= values
        new = row.texts(self.columns, self.keys)
        sent = [None if i in unchanged else text for i, text in enumerate(new)]
        old_values = None
        if self.identity == "f":
            old_values = old
        elif moved:
            old_values = self._key_only(old)
        return self._entry("update", sent, sorted(unchanged) or None, old_values)

    def delete(self, row: Row) -> Entry:
        self.rows.remove(row)
        old = row.texts(self.columns, self.keys)
        return self._entry(
            "delete", old_values=old if self.identity == "f" else self._key_only(old)
        )

    def truncate(self) -> Entry:
        self.rows.clear()
        return self._entry("truncate")

    def add_column(self, name: str, missing: str | None) -> None:
        self.columns.append(name)
        self.relation += 1
        for row in self.rows:
            row.values[name] = missing

    def _key_only(self, texts: list[str | None]) -> list[str | None]:
        return [t if c in self.keys else None for c, t in zip(self.columns, texts, strict=True)]

    def _entry(
        self,
        op: str,
        values: list[str | None] | None = None,
        unchanged: list[int] | None = None,
        old_values: list[str | None] | None = None,
    ) -> Entry:
        return Entry(self.name, op, values, unchanged, old_values, self.relation)


def run_transaction(
    rng: random.Random, table: SourceTable, *, keys: int, truncates: float = 0.0
) -> list[Entry]:
    """A random transaction on one table; its keys are unique again when it ends."""
    entries: list[Entry] = []
    for _ in range(rng.randint(1, 6)):
        entries += _run_statement(rng, table, keys)
        if rng.random() < truncates:
            entries.append(table.truncate())
    seen: dict[tuple[str, ...], Row] = {}
    for row in list(table.rows):
        if row.key in seen:
            victim = rng.choice([row, seen[row.key]])
            if victim is not row:
                seen[row.key] = row
            entries.append(table.delete(victim))
        else:
            seen[row.key] = row
    return entries


def _run_statement(  # noqa: PLR0911 - One statement, one answer.
    rng: random.Random, table: SourceTable, keys: int
) -> list[Entry]:
    key = table.make_key(rng.randrange(keys))
    is_free = table.deferrable or key not in {row.key for row in table.rows}
    row = rng.choice(table.rows) if table.rows else None
    statement = rng.choice(
        ("insert", "insert", "change", "change", "same", "move", "delete", "again", "shift", "swap")
    )
    if statement == "insert" or row is None:
        return [table.insert(key, _values(rng, table))] if is_free else []
    match statement:
        case "change":
            chosen = rng.sample(sorted(row.values), rng.randint(1, len(row.values)))
            values = {c: v for c, v in _values(rng, table).items() if c in chosen}
            return [table.update(row, values, None)]
        case "same":
            return [table.update(row, {}, None)]
        case "move":
            values = {} if rng.random() < 0.7 else {"v": _text(rng)}
            return [table.update(row, values, key)] if is_free else []
        case "delete":
            return [table.delete(row)]
        case "again":
            return [table.delete(row), table.insert(row.key, _values(rng, table))]
        case "shift":
            return _shift(rng, table, keys)
    return _swap(rng, table, row, keys)


def _shift(rng: random.Random, table: SourceTable, keys: int) -> list[Entry]:
    """UPDATE … SET k = k + 1 WHERE k BETWEEN …: in any order if deferrable, else from the top."""
    numbers = {table.make_key(n): n for n in range(keys + 40)}
    low = rng.randrange(keys)
    rows = [row for row in table.rows if low <= numbers[row.key] < low + 6]
    rows.sort(key=lambda row: -numbers[row.key])
    if table.deferrable:
        rng.shuffle(rows)
    entries: list[Entry] = []
    for row in rows:
        key = table.make_key(numbers[row.key] + 1)
        if numbers[row.key] + 1 >= keys + 40:
            continue
        if not table.deferrable and key in {other.key for other in table.rows}:
            continue
        entries.append(table.update(row, {}, key))
    return entries


def _swap(rng: random.Random, table: SourceTable, row: Row, keys: int) -> list[Entry]:
    other = rng.choice(table.rows)
    if other is row:
        return []
    first, second = row.key, other.key
    if table.deferrable:
        return [table.update(row, {}, second), table.update(other, {}, first)]
    free = [n for n in range(keys + 40) if table.make_key(n) not in {r.key for r in table.rows}]
    if not free or first == second:
        return []
    through = table.make_key(rng.choice(free))
    return [
        table.update(row, {}, through),
        table.update(other, {}, first),
        table.update(row, {}, second),
    ]


def _values(rng: random.Random, table: SourceTable) -> dict[str, str | None]:
    values: dict[str, str | None] = {c: _text(rng) for c in table.columns if c not in table.keys}
    for column in ("n", "added"):
        if column in values:
            values[column] = None if rng.random() < 0.1 else str(rng.randint(-5, 5))
    for column in ("big", "huge"):
        if column in values and rng.random() < 0.6:
            values[column] = LONG + str(rng.randint(0, 9999))
    return values


def _text(rng: random.Random) -> str | None:
    return (
        None
        if rng.random() < 0.1
        else rng.choice(("", "a", "b", " c ", "dé")) + str(rng.randint(0, 9))
    )
