"""A mode decides which rows a table has; a merge writes them in any way, and readers see them.

A table that keeps deleted rows is compared with a plain model, and with a table of the mode
`current` that has the same changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.comparing import OrdinalRange, RangeSum
from cdc_core.settings import TableSettings
from cdc_core.vocabulary import Relation, TableMode
from spark_jobs.lake.lake import open_table
from spark_jobs.lake.ledger import read_requests
from spark_jobs.modes.soft_delete import SOFT_DELETE
from spark_jobs.query.as_of import TableReading
from spark_jobs.query.stored import read_stored
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.missing_values import count_holes
from spark_jobs.target.result import TableMergeResult, WritePlan
from spark_jobs.verification.checksums import choose_compared, find_schema, sum_ranges
from tests.spark.relations import (
    Entry,
    delete,
    insert,
    make_relation,
    read,
    sweep,
    truncate,
    update,
)
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

SEED = 20261203
COLUMNS = "k int4, v text, n numeric, big text"
KEPT, CURRENT = make_relation("kept", COLUMNS), make_relation("plain", COLUMNS)
WIDER = make_relation("kept", f"{COLUMNS}, plus int4")
WIDEST = make_relation(
    "kept",
    f"{COLUMNS}, plus int4, more int4",
    more={"missing_value": "7", "has_default": True},
)
# What a round has, and the way in which the table is written.
ROUNDS: list[tuple[str, MergeLimits, WritePlan]] = [
    ("changes", MERGE_ONLY, WritePlan.MERGE),
    ("truncate", MERGE_ONLY, WritePlan.REWRITE),
    ("changes", MERGE_ONLY, WritePlan.MERGE),
    ("sweep", MERGE_ONLY, WritePlan.MERGE),
    ("changes", SPARK_ONLY, WritePlan.REWRITE),
    ("sweep", SPARK_ONLY, WritePlan.REWRITE),
    ("nothing", DEFAULT_LIMITS, WritePlan.MOVE_BOUND),
    ("changes", DEFAULT_LIMITS, WritePlan.REWRITE),
]
Change = Callable[[Relation], Entry]
Texts = tuple[str | None, ...]


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a lake whose table `kept` keeps deleted rows."""
    made = SmallLake(spark, tmp_path)
    rule = TableSettings(modes=(TableMode.SOFT_DELETE,))
    made.lake = replace(made.lake, rules={"public.kept": rule})
    return made


@dataclass
class Model:
    """The rows of the source now, and the last row of each key that it had."""

    rng: random.Random
    rows: dict[int, Texts] = field(default_factory=dict)
    last: dict[int, Texts] = field(default_factory=dict)

    def make(self, key: int) -> Texts:
        rng = self.rng
        number = rng.choice([None, "1", "-2.5", "NaN"])
        return (str(key), rng.choice([None, "", "a", "é"]), number, f"big{rng.randrange(1000)}")

    def insert(self, key: int) -> list[Change]:
        row = self.rows[key] = self.make(key)
        return [lambda relation: insert(relation, *row)]

    def update(self, key: int) -> list[Change]:
        """Change all values, or all but one, which is not sent."""
        row = self.make(key)
        if self.rng.random() < 0.5:
            self.rows[key] = row
            return [lambda relation: update(relation, *row)]
        self.rows[key] = (*row[:3], self.rows[key][3])
        return [lambda relation: update(relation, *row[:3], None, unchanged=[3])]

    def move(self, key: int, to: int) -> list[Change]:
        """Give a row another key, and do not send its last value."""
        row = self.make(to)
        self.rows[to] = (*row[:3], self.rows.pop(key)[3])
        old: list[str | None] = [str(key), None, None, None]
        return [lambda relation: update(relation, *row[:3], None, old=old, unchanged=[3])]

    def delete(self, key: int) -> list[Change]:
        del self.rows[key]
        return [lambda relation: delete(relation, str(key), None, None, None)]

    def truncate(self) -> list[Change]:
        self.rows.clear()
        return [truncate]

    def sweep(self, start: int, low: int, high: int) -> list[Change]:
        """Lose a row without a change, then read a range and sweep it."""
        inside = [key for key in self.rows if low <= key <= high]
        del self.rows[inside[0]]
        reads = [self.rows[key] for key in inside[1:]]
        return [
            *(_read(row) for row in reads),
            lambda relation: sweep(relation, start=start, low=[str(low)], high=[str(high)]),
        ]

    def run_transaction(self) -> list[Change]:
        changes: list[Change] = []
        for _ in range(self.rng.randint(1, 5)):
            free = [key for key in range(16) if key not in self.rows]
            statement = self.rng.choice(("insert", "insert", "update", "update", "move", "delete"))
            if statement == "insert" or not self.rows:
                changes += self.insert(self.rng.choice(free)) if free else []
                continue
            key = self.rng.choice(sorted(self.rows))
            match statement:
                case "update":
                    changes += self.update(key)
                case "move" if free:
                    changes += self.move(key, self.rng.choice(free))
                case _:
                    changes += self.delete(key)
        return changes

    def end(self, changes: list[Change]) -> list[Change]:
        """End a transaction that has made some changes."""
        self.last |= self.rows
        return changes

    def list_stored(self) -> list[tuple[Any, ...]]:
        """The rows that the table must store: key, two texts, if it is deleted, if it says when."""
        return sorted(
            (
                (key, v, big, key not in self.rows, key not in self.rows)
                for key, (_, v, _, big) in self.last.items()
            ),
            key=repr,
        )


def _read(row: Texts) -> Change:
    return lambda relation: read(relation, *row)


def make_both(changes: list[Change]) -> list[Entry]:
    """The same changes of both tables, in one transaction."""
    return [change(relation) for change in changes for relation in (KEPT, CURRENT)]


def list_stored(small: SmallLake) -> list[tuple[Any, ...]]:
    rows = small.rows(KEPT, "k", "v", "big", "_deleted", "_deleted_at")
    return sorted(((*row[:4], row[4] is not None) for row in rows), key=repr)


def list_texts(small: SmallLake, reading: TableReading, relation: Relation) -> list[Any]:
    return small.plain(reading.rows, relation, "k", "v", "n", "big", "_raw", "_holes")


def sum_up(reading: TableReading) -> dict[int | None, RangeSum]:
    schema = find_schema(reading.rows)
    compared = choose_compared(schema, among=schema.names, hashed=frozenset())
    return sum_ranges(reading.rows, schema, compared, OrdinalRange(), 4)


def describe(merged: TableMergeResult) -> dict[str, Any]:
    return {
        name: getattr(merged, name) for name in ("rows", "inserted", "updated", "deleted", "lossy")
    }


def check_readers(small: SmallLake, model: Model) -> None:
    """Both tables read the same at the staged LSN, and are the source's."""
    kept, current = (small.at(relation, small.log.lsn) for relation in (KEPT, CURRENT))
    assert kept.rows.columns == current.rows.columns
    texts = list_texts(small, kept, KEPT)
    assert texts == list_texts(small, current, CURRENT)
    assert [row[0] for row in sorted(texts)] == sorted(model.rows)
    assert sum_up(kept) == sum_up(current)


def check_arrow_reader(small: SmallLake, model: Model) -> None:
    """Arrow reads only the present rows, without the columns of the mode."""
    opened = open_table(small.lake.locate(KEPT.table))
    assert opened is not None
    rows = read_stored(small.lake, KEPT.table, opened)
    assert not {"_deleted", "_deleted_at"}.intersection(rows.column_names)
    assert sorted(rows[KEPT.columns[0].name].to_pylist()) == sorted(model.rows)


def change_for(kind: str, small: SmallLake, model: Model) -> list[list[Change]]:
    """The transactions of a round."""
    match kind:
        case "nothing":
            return [[lambda relation: sweep(relation, start=16)]]
        case "sweep":
            if not model.rows:
                small.commit(make_both(model.end(model.insert(0))))
            (start,) = small.commit([])
            low = model.rng.choice(sorted(model.rows))
            return [
                model.end(model.sweep(start, low, low + 6)),
                model.end(model.run_transaction()),
            ]
        case "truncate":
            cleared = [*model.run_transaction(), *model.truncate(), *model.run_transaction()]
            return [model.end(cleared)]
        case _:
            return [model.end(model.run_transaction()) for _ in range(3)]


@pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(1, marks=pytest.mark.timeout(900)),
        pytest.param(25, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_a_mode_that_keeps_deleted_rows_keeps_them_by_every_way(
    small: SmallLake, cycles: int
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    model = Model(random.Random(SEED))
    first = [change for key in range(12) for change in model.insert(key)]
    small.merge(make_both(model.end(first)))
    assert list_stored(small) == model.list_stored()
    for cycle in range(cycles):
        for number, (kind, limits, way) in enumerate(ROUNDS):
            transactions = change_for(kind, small, model)
            small.commit(*(make_both(changes) for changes in transactions))
            if kind == "sweep":
                check_readers(small, model)
            (done,) = small.merge(limits=limits)
            merged = done.tables["public.kept"]
            assert merged.way is way
            assert list_stored(small) == model.list_stored(), (cycle, number)
            assert describe(merged) == describe(done.tables["public.plain"]), (cycle, number)
            assert merged.rows == len(model.rows)
            check_arrow_reader(small, model)
        check_readers(small, model)
    assert len(model.last) > len(model.rows)
    assert not read_requests(small.lake), "no merge has found damage"


def test_only_spark_writes_a_mode_that_no_quick_way_knows(small: SmallLake) -> None:
    many = make_both([_read((str(key), "a", "1", "b")) for key in range(40)])
    limits = MergeLimits(unshared_reads=3, small_table_bytes=0)
    (done,) = small.merge(many, limits=limits)
    assert done.tables["public.plain"].way is WritePlan.APPEND
    assert done.tables["public.kept"].way is WritePlan.REWRITE
    (done,) = small.merge(make_both([lambda relation: update(relation, "1", "b", "1", "b")]))
    assert done.tables["public.plain"].way is WritePlan.REWRITE_FILES
    assert done.tables["public.kept"].way is WritePlan.REWRITE
    assert done.tables["public.kept"].refusal == "only Spark writes a table of mode soft_delete"


@pytest.mark.parametrize("limits", [MERGE_ONLY, SPARK_ONLY], ids=["merge", "rewrite"])
def test_kept_rows_get_new_columns(small: SmallLake, limits: MergeLimits) -> None:
    small.merge([insert(KEPT, k, "a", None, None) for k in "123"], limits=limits)
    small.merge([delete(KEPT, "2", None, None, None)], limits=limits)
    small.merge([insert(WIDER, "4", "a", None, None, "5"), delete(WIDER, "3", *[None] * 4)],
                limits=limits)  # fmt: skip
    columns = ("k", "plus", "_deleted")
    assert small.rows(KEPT, *columns) == [
        (1, None, False), (2, None, True), (3, None, True), (4, 5, False)
    ]  # fmt: skip
    small.merge([insert(WIDEST, "3", "a", None, None, "5", "6")], limits=limits)
    assert small.rows(KEPT, *columns, "more") == [
        (1, None, False, 7), (2, None, True, 7), (3, 5, False, 6), (4, 5, False, 7)
    ]  # fmt: skip


@pytest.mark.parametrize("limits", [MERGE_ONLY, SPARK_ONLY], ids=["merge", "rewrite"])
def test_a_row_takes_no_value_from_a_kept_row(small: SmallLake, limits: MergeLimits) -> None:
    folder = small.lake.locate(KEPT.table)

    def count() -> int:
        table = open_table(folder)
        assert table is not None
        return count_holes(folder, table, SOFT_DELETE)

    small.merge([insert(KEPT, k, "a", None, "old") for k in "12"])
    small.merge([delete(KEPT, "1", None, None, None)], limits=limits)
    # The log of a faithful source has no such update: its row is unknown, and so is its value.
    small.merge([update(KEPT, "1", "b", None, None, unchanged=[3])], limits=limits)
    columns = ("k", "v", "big", "_holes", "_deleted")
    assert small.rows(KEPT, *columns) == [
        (1, "b", None, ["big"], False), (2, "a", "old", None, False)
    ]  # fmt: skip
    assert count() == 1
    small.merge([delete(KEPT, "1", None, None, None)], limits=limits)
    assert small.rows(KEPT, *columns)[0] == (1, "b", None, ["big"], True)
    assert count() == 0, "nobody can read the value of a deleted row again"


def test_a_key_that_is_stored_twice_is_stored_once_after_a_merge_that_meets_it(
    small: SmallLake,
) -> None:
    small.limits = MERGE_ONLY
    small.merge([insert(KEPT, k, "a", None, None) for k in "123"])
    small.merge([delete(KEPT, "3", None, None, None)])
    table = f"delta.`{small.lake.locate(KEPT.table)}`"
    small.spark.sql(f"insert into {table} by name select * from {table} where k in (1, 2)")
    # A departure alone meets no damage that is counted: only rows that arrive are.
    (done,) = small.merge([update(KEPT, "1", "b", None, None), delete(KEPT, "2", None, None, None)])
    assert small.rows(KEPT, "k", "v", "_deleted") == [
        (1, "b", False), (2, "a", True), (3, "a", True)
    ]  # fmt: skip
    (request,) = read_requests(small.lake)
    assert request.table == "public.kept"
    merged = done.tables["public.kept"]
    assert (merged.rows, merged.inserted, merged.updated, merged.deleted) == (1, 0, 1, 1)


def test_a_kept_row_has_the_position_of_its_departure(small: SmallLake) -> None:
    small.limits = MERGE_ONLY
    small.merge([insert(KEPT, k, "a", None, None) for k in "12"])
    (end,) = small.commit([delete(KEPT, "1", None, None, None)])
    small.merge()
    assert small.rows(KEPT, "k", "_commit_lsn")[0] == (1, end - 8)
