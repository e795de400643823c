"""A target of entries has what was sent, whatever happens to the columns and wherever rounds end.

A plain model follows each column by the ALTER that changed it, and never compares announcements.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc_core.settings import TableSettings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, TableMode, encode_name
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.entries_at import entries_at
from tests.lakes import copy_lake, locate_lake
from tests.spark.log_writer import LogWriter
from tests.spark.relations import OIDS, make_relation

SEED = 20261129
APPEND = TableSettings(modes=(TableMode.CURRENT, TableMode.APPEND))
T = make_relation("t", "k int4")
ENTRIES = Target(T.table, TargetKind.APPEND)
TYPES = ["text", "int4", "numeric"]
WITH_VALUES = ("insert", "update", "read")
Row = tuple[str, dict[str, str | None], frozenset[str], dict[str, str | None]]


@dataclass(eq=False)
class ModelColumn:
    """A column through all of its ALTERs; entries below `since` have lost its value."""

    name: str
    attnum: int
    kind: str
    hashed_by: str | None = None
    since: int = 0


@dataclass
class ModelEntry:
    op: str
    values: dict[ModelColumn, str | None]
    unsent: frozenset[ModelColumn]
    old: dict[ModelColumn, str | None]
    end: int = 0


@dataclass
class World:
    """A table whose columns change at random, its log, and each entry by column."""

    rng: random.Random
    writer: LogWriter
    present: list[ModelColumn] = field(default_factory=list)
    dropped: list[ModelColumn] = field(default_factory=list)
    left_out: tuple[int, ...] = ()
    entries: list[ModelEntry] = field(default_factory=list)
    attnums: int = 3

    def alter(self) -> None:
        """Change a column other than the key, or add or drop one."""
        others = self.present[1:]
        one = self.rng.choice(others)
        match self.rng.choice(
            ["rename", "swap", "type", "drop", "add", "again", "hash", "exclude"]
        ):
            case "rename":
                self.take_name(one, f"c{self.rng.randrange(6)}")
            case "swap" if len(others) > 1:
                other = self.rng.choice([c for c in others if c is not one])
                one.name, other.name = other.name, one.name
            case "type":
                one.kind = self.rng.choice(TYPES)
            case "drop" if len(others) > 1:
                self.drop(one)
            case "add":
                self.attnums += 1
                added = ModelColumn("", self.attnums, self.rng.choice(TYPES))
                self.present.append(added)
                self.take_name(added, f"n{self.attnums}")
            case "again" if self.dropped:
                back = self.dropped.pop(self.rng.randrange(len(self.dropped)))
                self.attnums += 1
                back.attnum, back.kind = self.attnums, self.rng.choice(TYPES)
                self.present.append(back)
                if back.hashed_by is not None:
                    back.hashed_by, back.since = None, len(self.entries)
            case "hash":
                one.hashed_by = self.rng.choice([h for h in (None, "a", "b") if h != one.hashed_by])
                one.since = len(self.entries)
            case "exclude" if len(others) > 1:
                self.drop(one)
                self.left_out = tuple(sorted({*self.left_out, one.attnum}))
                one.since = len(self.entries)

    def drop(self, column: ModelColumn) -> None:
        self.present.remove(column)
        self.dropped.append(column)

    def take_name(self, column: ModelColumn, name: str) -> None:
        """Give a column a name, unless another present column has it."""
        if name in {one.name for one in self.present}:
            return
        column.name = name
        taken = {one.name for one in (*self.present, *self.dropped) if one is not column}
        for other in self.dropped:
            if other.name == name:
                number = 2
                while f"{name} ({number})" in taken:
                    number += 1
                other.name = f"{name} ({number})"

    def commit(self) -> None:
        """One transaction of a few entries, under the columns of now."""
        identity = self.rng.choice("df")
        spec = ", ".join(f"{column.name} {column.kind}" for column in self.present)
        made = make_relation("t", spec, identity=identity)
        columns = [
            replace(c, attnum=own.attnum, hashed_by=own.hashed_by, type_oid=OIDS[own.kind])
            for c, own in zip(made.columns, self.present, strict=True)
        ]
        relation = replace(made, columns=tuple(columns), left_out=self.left_out)
        some = [self.make_entry(identity) for _ in range(self.rng.randint(1, 4))]
        end = self.writer.add([(relation, self.describe(entry)) for entry in some])
        for entry in some:
            entry.end = end
        self.entries += some

    def make_entry(self, identity: str) -> ModelEntry:
        op = self.rng.choice(["insert", "update", "delete", "read", "truncate"])
        values = {column: self.draw(column) for column in self.present}
        unsent: frozenset[ModelColumn] = frozenset()
        if op == "update" and len(self.present) > 1 and self.rng.random() < 0.5:
            unsent = frozenset({self.rng.choice(self.present[1:])})
            values |= dict.fromkeys(unsent)
        old: dict[ModelColumn, str | None] = {}
        if op == "delete" or (op == "update" and identity == "f"):
            sent = self.present if identity == "f" else self.present[:1]
            old = {column: self.draw(column) for column in sent}
        return ModelEntry(op, values if op in WITH_VALUES else {}, unsent, old)

    def draw(self, column: ModelColumn) -> str | None:
        number = str(self.rng.randrange(100))
        if column is self.present[0]:
            return number
        words = {"text": ["abc", "1.50", number], "int4": [number], "numeric": ["1.50", number]}
        return self.rng.choice([None, *words[column.kind]])

    def describe(self, entry: ModelEntry) -> dict[str, Any]:
        row: dict[str, Any] = {"op": entry.op}
        if entry.values:
            row["values"] = [entry.values[column] for column in self.present]
            row["unchanged"] = [self.present.index(c) for c in entry.unsent] or None
        if entry.old:
            row["old_values"] = [entry.old.get(column) for column in self.present]
        return row

    def expect(self) -> list[Row]:
        """Each entry as the target must have it now."""
        columns = [*self.present, *self.dropped]
        return [self._expect(n, entry, columns) for n, entry in enumerate(self.entries)]

    def _expect(self, number: int, entry: ModelEntry, columns: list[ModelColumn]) -> Row:
        lost = {column for column in columns if number < column.since}
        holes = (lost | entry.unsent) if entry.op in WITH_VALUES else set()
        return (
            entry.op,
            {name_of(c): None if c in lost else entry.values.get(c) for c in columns},
            frozenset(map(name_of, holes)),
            {name_of(c): text for c, text in entry.old.items() if c not in lost},
        )


def name_of(column: ModelColumn) -> str:
    return encode_name(column.name)


def make_world(lake: Lake, seed: int, transactions: int) -> World:
    writer = LogWriter(lake)
    writer.begin_epoch(16)
    world = World(random.Random(seed), writer)
    world.present = [
        ModelColumn("k", 1, "int4"), ModelColumn("c1", 2, "text"), ModelColumn("c2", 3, "int4")
    ]  # fmt: skip
    for number in range(transactions):
        if world.rng.random() < 0.3:
            world.alter()
        world.commit()
        if number % 7 == 6:
            writer.commit(repeat=world.rng.randrange(3))
    writer.commit()
    return world


def read_rows(rows: DataFrame, world: World) -> list[Row]:
    """The rows in log order, in the form of the model."""
    names = [name_of(column) for column in (*world.present, *world.dropped)]
    found: list[Row] = []
    for row in rows.orderBy("_epoch", "_commit_lsn", "_seq").collect():
        raw, old = row["_raw"] or {}, row["_old"] or {}
        texts = {name: raw.get(name, write(row[name])) for name in names}
        assert not set(raw) - set(names)
        found.append((row["_op"], texts, frozenset(row["_holes"] or ()), old))
    return found


def write(value: object) -> str | None:
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return None if value is None else str(value)


@pytest.mark.parametrize(
    ("seed", "transactions"),
    [
        pytest.param(SEED, 24, marks=pytest.mark.timeout(900)),
        *(
            pytest.param(seed, 50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])
            for seed in range(10)
        ),
    ],
)
def test_entries_are_what_was_sent_wherever_rounds_end(
    spark: SparkSession, tmp_path: Path, seed: int, transactions: int
) -> None:
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails.
    lake = Lake(locate_lake(tmp_path / "lake"), rules={"*.*": APPEND})
    world = make_world(lake, seed, transactions)
    expected = world.expect()
    names = ["_op", "_end_lsn"]
    for rounds in (1, 4):
        copied = Lake(locate_lake(tmp_path / f"in {rounds}"), rules=lake.rules)
        copy_lake(lake.root, copied.root)
        if rounds == 1:  # Nothing is merged yet.
            at = Bound(1, Lsn(world.writer.lsn))
            assert read_rows(entries_at(spark, copied, ENTRIES, at).rows, world) == expected
        merge_until(spark, copied, round_rows=max(1, len(expected) // rounds))
        stored = spark.read.format("delta").load(copied.locate_target(ENTRIES).uri)
        assert read_rows(stored, world) == expected, rounds
        end = world.rng.choice(world.entries).end
        rows = entries_at(spark, copied, ENTRIES, Bound(1, Lsn(end))).rows
        found = [tuple(row) for row in rows.orderBy("_commit_lsn", "_seq").select(*names).collect()]
        assert found == [(entry.op, entry.end) for entry in world.entries if entry.end <= end]
