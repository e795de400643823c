"""A random table, and the statements that one of several connections can run on it.

Connections never wait for one another: each has key numbers of its own, and the rows that it made
bear its number in column `o`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tests.end_to_end.random_columns import (
    KEYS,
    Column,
    draw_kind,
    draw_value,
    quote,
    write,
)

CONNECTIONS = 3
KEY_NUMBERS = 30
# Where a key waits while two others change places; no other statement uses it.
_AWAY = 500
_SECOND_PART = 5

Kinds = Mapping[str, list[str]]
Draw = Callable[[random.Random, int], list[str]]


@dataclass
class RandomTable:
    """A table as it is now. `identity` is the letter of pg_class; `i` is the unique column `u`."""

    name: str
    kinds: Kinds
    columns: list[Column]
    key: list[Column]
    key_families: list[str]
    identity: str
    deferrable: bool
    partitioned: bool
    younger: int = 0
    has_computed: bool = False
    is_rewritten: bool = False  # Its files are not those that it was made with.
    is_published: bool = True
    leaves: list[str] = field(default_factory=list)

    @classmethod
    def draw(cls, rng: random.Random, number: int, kinds: Kinds) -> RandomTable:
        """A table that can be made as it is."""
        name = rng.choice((f"r{number}", f"R {number}.é~", f"select{number}"))
        families = [rng.choice(sorted(KEYS)) for _ in range(rng.choice((1, 1, 2)))]
        if families.count("long") > 1:
            families[1] = "int4"
        names = rng.sample(["k", "Key 2", "id"], len(families))
        key = [
            Column(name, "text" if family == "long" else family, not_null=True)
            for name, family in zip(names, families, strict=True)
        ]
        plain = [
            Column("o", "int2", not_null=True),
            Column("n", "int4"),
            Column("v", "varchar(10)"),
            Column("big", rng.choice(("text", "text", "varchar")), is_long=True),
            *(Column(f"c{i}", draw_kind(rng, kinds)) for i in range(rng.randint(1, 4))),
        ]
        identity = rng.choice("dddfffi")
        if rng.random() < 0.03:
            identity = "n"
        if identity == "i":
            plain.append(Column("u", "int4", not_null=True))
        columns = key + plain
        rng.shuffle(columns)
        partitioned = identity in "df" and "long" not in families and rng.random() < 0.12
        deferrable = identity == "f" and not partitioned and rng.random() < 0.5
        return cls(name, kinds, columns, key, families, identity, deferrable, partitioned)

    @property
    def quoted(self) -> str:
        """Its name in SQL."""
        return quote(self.name)

    @property
    def is_plain(self) -> bool:
        """Whether it has rows of its own."""
        return not self.partitioned

    def make(self) -> list[str]:
        """The statements that make it."""
        columns = ", ".join(
            f"{c.quoted} {c.kind}{' not null' if c.not_null else ''}" for c in self.columns
        )
        names = ", ".join(c.quoted for c in self.key)
        late = " deferrable initially deferred" if self.deferrable else ""
        table = self.quoted
        parted = f" partition by hash ({self.key[0].quoted})" if self.partitioned else ""
        made = [f"create table {table} ({columns}, primary key ({names}){late}){parted}"]
        self.leaves = [f"{self.name}_{i}" for i in range(2)] if self.partitioned else []
        for i, leaf in enumerate(self.leaves):
            values = f"for values with (modulus 2, remainder {i})"
            made.append(f"create table {quote(leaf)} partition of {table} {values}")
        external = [c for c in self.columns if c.is_long or c in self.long_keys]
        made += [f"alter table {table} alter {c.quoted} set storage external" for c in external]
        if any(c.name == "u" for c in self.columns):
            made.append(f"create unique index {quote(self.name + ' u')} on {table} (u)")
        return made + self.set_identity(self.identity)

    @property
    def long_keys(self) -> list[Column]:
        """The key columns that are stored out of line."""
        return [c for c, f in zip(self.key, self.key_families, strict=True) if f == "long"]

    def set_identity(self, identity: str) -> list[str]:
        """The statements that give it another replica identity."""
        self.identity = identity
        index = f"using index {quote(self.name + ' u')}"
        written = {"d": "default", "f": "full", "n": "nothing", "i": index}[identity]
        tables = [self.quoted, *(quote(leaf) for leaf in self.leaves)]
        return [f"alter table {table} replica identity {written}" for table in tables]

    def others(self) -> list[Column]:
        """The columns that a statement may set, or another column take the place of."""
        kept = {c.name for c in self.key} | {"o", "u"}
        return [c for c in self.columns if c.name not in kept]

    def name_younger(self) -> str:
        """The name of a new column."""
        self.younger += 1
        return f"y{self.younger}"

    def change_column(self, old: Column, **changes: object) -> None:
        """Take note of a changed column."""
        self.columns[self.columns.index(old)] = replace(old, **changes)  # type: ignore[arg-type]

    def copy(self) -> RandomTable:
        """The table as it is now, to go back to when a transaction is rolled back."""
        return replace(self, columns=[*self.columns], leaves=[*self.leaves])

    # What one connection does.

    def draw_statements(self, rng: random.Random, owner: int) -> list[str]:
        """One thing that happens to a row or two; it may fail where a key is taken."""
        draws: dict[Draw, int] = {
            self.insert: 5,
            self.update: 5,
            self.renew: 2,
            self.delete: 1,
            self.sweep: 1,
            self.touch: 1,
            self.replace_row: 1,
            self.move: 2,
            self.swap: 1,
        }
        (draw,) = rng.choices([*draws], [*draws.values()])
        return draw(rng, owner)

    def insert(self, rng: random.Random, owner: int, number: int | None = None) -> list[str]:
        """A new row, or two."""
        numbers = (
            [number] if number is not None else self._numbers(rng, owner, rng.choice((1, 1, 2)))
        )
        left_out = [c for c in self.others() if rng.random() < 0.1]
        columns = [c for c in self.columns if c not in left_out]
        rows = ", ".join(f"({self._row(rng, owner, n, columns)})" for n in numbers)
        names = ", ".join(c.quoted for c in columns)
        return [f"insert into {self.quoted} ({names}) values {rows}"]

    def update(self, rng: random.Random, owner: int) -> list[str]:
        """Some columns of a row set anew."""
        (number,) = self._numbers(rng, owner)
        chosen = rng.sample(self.others(), rng.randint(1, min(2, len(self.others()))))
        return [f"update {self.quoted} set {self._set(rng, chosen)} where {self._is(rng, number)}"]

    def renew(self, rng: random.Random, owner: int) -> list[str]:
        """One column of all rows of a connection set anew."""
        chosen = [rng.choice(self.others())]
        return [f"update {self.quoted} set {self._set(rng, chosen)} where o = {owner}"]

    def touch(self, _: random.Random, owner: int) -> list[str]:
        """Rows updated without a change: nothing that is stored out of line is sent."""
        return [f"update {self.quoted} set o = o where o = {owner}"]

    def delete(self, rng: random.Random, owner: int) -> list[str]:
        """A row deleted."""
        (number,) = self._numbers(rng, owner)
        return [f"delete from {self.quoted} where {self._is(rng, number)}"]

    def sweep(self, rng: random.Random, owner: int) -> list[str]:
        """Many rows deleted."""
        numbers = self._numbers(rng, owner, 4)
        return [f"delete from {self.quoted} where {' or '.join(self._is(rng, n) for n in numbers)}"]

    def move(self, rng: random.Random, owner: int) -> list[str]:
        """A row moved to another key, or to another spelling of its own."""
        old, new = self._numbers(rng, owner, 2)
        if rng.random() < 0.3:
            new = old
        also = rng.sample(self.others(), rng.choice((0, 0, 1)))
        sets = ", ".join(filter(None, (self._set_key(rng, new), self._set(rng, also))))
        return [f"update {self.quoted} set {sets} where {self._is(rng, old)}"]

    def swap(self, rng: random.Random, owner: int) -> list[str]:
        """Two keys that change places: at once where the constraint waits, else by a third."""
        one, two = self._numbers(rng, owner, 2)
        table = self.quoted
        if self.deferrable:
            is_one = self._is(rng, one)
            sets = ", ".join(
                f"{c.quoted} = case when {is_one} then {other} else {own} end"
                for c, own, other in zip(
                    self.key, self._spell(rng, one), self._spell(rng, two), strict=True
                )
            )
            return [f"update {table} set {sets} where {is_one} or {self._is(rng, two)}"]
        steps = ((one, _AWAY + owner), (two, one), (_AWAY + owner, two))
        return [
            f"update {table} set {self._set_key(rng, new)} where {self._is(rng, old)}"
            for old, new in steps
        ]

    def replace_row(self, rng: random.Random, owner: int) -> list[str]:
        """A row deleted and made again under the same key."""
        (number,) = self._numbers(rng, owner)
        gone = f"delete from {self.quoted} where {self._is(rng, number)}"
        return [gone, *self.insert(rng, owner, number)]

    def fill(self, rng: random.Random, owner: int, first: int, rows: int) -> list[str]:
        """So many new rows with a long value, from a key number on."""
        made = ", ".join(f"({self._row(rng, owner, first + i, self.columns)})" for i in range(rows))
        names = ", ".join(c.quoted for c in self.columns)
        return [f"insert into {self.quoted} ({names}) values {made}"]

    def _numbers(self, rng: random.Random, owner: int, count: int = 1) -> list[int]:
        return rng.sample(range(owner, KEY_NUMBERS, CONNECTIONS), count)

    def _row(self, rng: random.Random, owner: int, number: int, columns: list[Column]) -> str:
        key = dict(zip((c.name for c in self.key), self._spell(rng, number), strict=True))
        own = {"o": str(owner), "u": str(rng.randrange(10**6) * CONNECTIONS + owner)}
        return ", ".join(
            key.get(c.name) or own.get(c.name) or write(draw_value(rng, c, self.kinds), c.kind)
            for c in columns
        )

    def _spell(self, rng: random.Random, number: int) -> list[str]:
        parts = [number]
        if len(self.key) > 1:
            parts = [number // _SECOND_PART, number % _SECOND_PART]
        return [
            write(rng.choice(KEYS[family](part)), column.kind)
            for column, family, part in zip(self.key, self.key_families, parts, strict=True)
        ]

    def _is(self, rng: random.Random, number: int) -> str:
        pairs = zip(self.key, self._spell(rng, number), strict=True)
        return "(" + " and ".join(f"{c.quoted} = {value}" for c, value in pairs) + ")"

    def _set_key(self, rng: random.Random, number: int) -> str:
        pairs = zip(self.key, self._spell(rng, number), strict=True)
        return ", ".join(f"{c.quoted} = {value}" for c, value in pairs)

    def _set(self, rng: random.Random, columns: list[Column]) -> str:
        return ", ".join(
            f"{c.quoted} = {write(draw_value(rng, c, self.kinds), c.kind)}" for c in columns
        )
