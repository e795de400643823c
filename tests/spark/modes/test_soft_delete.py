"""In the mode `soft_delete`, a deleted row has the last values that a transaction left it.

The expected rows come from what the source was at the end of each transaction, and from nothing
else. So they do not depend on where rounds end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.settings import TableSettings
from cdc_core.vocabulary import Lsn, TableMode
from spark_jobs.lake.lake import Bound, Lake, open_table
from spark_jobs.lake.ledger import find_cut, read_requests
from spark_jobs.merge import rounds as merge_rounds
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.as_of import table_at
from spark_jobs.query.sql import answer_query
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import copy_lake, locate_lake
from tests.spark.log_writer import EPOCH_START, LogWriter
from tests.spark.recorded_log import RecordedLog, Truth, read_texts
from tests.spark.relations import (
    delete,
    insert,
    make_relation,
    mark,
    read,
    sweep,
    truncate,
    update,
)
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake
from tests.spark.source_model import SourceTable

SEED = 20261128
SOFT = TableSettings(modes=(TableMode.SOFT_DELETE,))
T = make_relation("t", "k int4, v text, big text")
# The log writer commits a transaction at this time, plus its end LSN in milliseconds.
START_MS = int(EPOCH_START.timestamp() * 1000)


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a lake whose tables keep deleted rows."""
    made = SmallLake(spark, tmp_path)
    made.lake = replace(made.lake, rules={"*.*": SOFT})
    return made


def list_rows(small: SmallLake) -> list[tuple[Any, ...]]:
    """Each row of the table; the time of a deletion as the end LSN of its transaction."""
    rows = small.spark.read.format("delta").load(str(small.lake.locate(T.table)))
    return sorted(tuple(row) for row in rows.select("k", "v", "_deleted", find_end()).collect())


def find_end() -> Column:
    """The end LSN of the transaction that deleted a row, by its commit time."""
    return F.unix_millis("_deleted_at") - START_MS


@pytest.fixture(params=[MERGE_ONLY, SPARK_ONLY], ids=["merge", "rewrite"])
def limits(request: pytest.FixtureRequest) -> MergeLimits:
    """Lend limits by which Spark merges, or writes small tables whole."""
    chosen: MergeLimits = request.param
    return chosen


def test_each_kind_of_removal_marks_the_row_with_its_time(
    small: SmallLake, limits: MergeLimits
) -> None:
    small.limits = limits
    small.merge([insert(T, str(k), "a", None) for k in range(6)])
    (first,) = small.commit([delete(T, "0", None, None)])
    (moved,) = small.commit([update(T, "9", "b", None, old=["1", None, None])])
    small.merge()
    assert list_rows(small)[:2] == [(0, "a", True, first), (1, "a", True, moved)]
    (start,) = small.commit([])
    (swept,) = small.commit([read(T, "3", "a", None), sweep(T, start=start, low=["2"], high=["3"])])
    small.merge()
    assert list_rows(small) == [
        (0, "a", True, first), (1, "a", True, moved), (2, "a", True, swept), (3, "a", False, None),
        (4, "a", False, None), (5, "a", False, None), (9, "b", False, None),
    ]  # fmt: skip
    (cleared,) = small.commit([update(T, "4", "z", None), truncate(T), insert(T, "0", "c", None)])
    small.merge()
    assert list_rows(small) == [
        (0, "c", False, None), (1, "a", True, moved), (2, "a", True, swept),
        *((k, v, True, cleared) for k, v in [(3, "a"), (4, "a"), (5, "a"), (9, "b")]),
    ]  # fmt: skip


def test_rows_that_came_and_went_between_two_merges_are_kept(
    small: SmallLake, limits: MergeLimits
) -> None:
    small.limits = limits
    small.merge([insert(T, "1", "a", "big")])
    ends = small.commit(
        [update(T, "1", "b", None, unchanged=[2])],
        [insert(T, "2", "c", None), insert(T, "3", "d", None)],
        [insert(T, "4", "e", None), delete(T, "4", None, None)],
        [update(T, "1", "never", None), delete(T, "1", None, None)],
        [delete(T, "2", None, None)],
        [truncate(T)],
        [insert(T, "3", "f", None)],
        [delete(T, "3", None, None)],
    )
    small.merge()
    assert list_rows(small) == [
        (1, "b", True, ends[3]), (2, "c", True, ends[4]), (3, "f", True, ends[7])
    ]  # fmt: skip
    assert small.rows(T, "k", "big")[0] == (1, "big"), "a value that no change sent"


def test_a_value_that_moved_rows_did_not_send_follows_them_into_a_deleted_row(
    small: SmallLake, limits: MergeLimits
) -> None:
    small.limits = limits
    small.merge([insert(T, "1", "a", "first")])
    small.merge(
        [update(T, "2", "b", None, old=["1", None, None], unchanged=[2])],
        [update(T, "2", "c", None, unchanged=[2])],
        # The row that arrives here leaves its value to key 3, not to key 2.
        [
            delete(T, "2", None, None),
            insert(T, "2", "d", "second"),
            update(T, "3", "e", None, old=["2", None, None], unchanged=[2]),
        ],
        [delete(T, "3", None, None)],
    )
    assert small.rows(T, "k", "v", "big", "_deleted", "_holes") == [
        (1, "a", "first", True, None), (2, "c", "first", True, None),
        (3, "e", "second", True, None),
    ]  # fmt: skip
    small.merge(
        [insert(T, "4", "f", "old")],
        # The last row of key 4 has the old value, the row that moves away the new one.
        [
            update(T, "4", "g", "new"),
            update(T, "5", "h", None, old=["4", None, None], unchanged=[2]),
        ],
        [delete(T, "5", None, None)],
    )
    assert small.rows(T, "k", "v", "big", "_deleted")[3:] == [
        (4, "f", "old", True), (5, "h", "new", True)
    ]  # fmt: skip


def test_a_table_gets_another_mode_without_a_change(small: SmallLake, limits: MergeLimits) -> None:
    small.limits = limits
    soft, current = small.lake, replace(small.lake, rules={})
    small.lake = current
    small.merge([insert(T, "1", "a", "x"), insert(T, "2", "b", None)])
    small.lake = soft
    (done,) = small.merge()
    assert done.tables["public.t"].way is WritePlan.REWRITE
    assert list_rows(small) == [(1, "a", False, None), (2, "b", False, None)]
    cut = find_cut(small.lake)
    assert cut is not None
    assert cut.versions["public.t"] == small.version(T)
    assert small.merge() == [], "it has its mode"
    (end,) = small.commit([delete(T, "1", None, None), update(T, "2", "c", None)])
    small.merge()
    assert list_rows(small) == [(1, "a", True, end), (2, "c", False, None)]
    small.lake = current
    small.merge([insert(T, "3", "d", None)])
    assert small.rows(T, "k", "v") == [(2, "c"), (3, "d")]
    table = open_table(small.lake.locate(T.table))
    assert table is not None
    assert not {"_deleted", "_deleted_at"} & {field.name for field in table.schema().fields}


def test_deleted_rows_survive_when_a_table_is_built_again_in_a_new_shape(
    small: SmallLake, limits: MergeLimits
) -> None:
    small.limits = limits
    old = make_relation("t", "k int4, v text, w text, gone float8")
    # A type changed, a column was renamed, one was dropped, and one is new.
    new = make_relation("t", "k int4, v int8, z text, more int4", z={"attnum": 3},
                        more={"attnum": 5, "missing_value": "9", "has_default": True})  # fmt: skip
    other = make_relation("other", "k int4")
    small.merge([insert(old, str(k), v, "w", "1.5") for k, v in enumerate(["5", "abc", "6"])])
    (end,) = small.commit([delete(old, k, None, None, None) for k in "01"])
    small.merge()
    small.merge([insert(new, "3", "7", "z", "1")])
    assert small.rows(old, "k", "_deleted") == [(0, True), (1, True), (2, False)], "it halted"
    (start,) = small.commit([mark(other)])
    (swept,) = small.commit([read(new, "3", "7", "z", "1"), sweep(new, start=start)])
    expected = [
        (0, 5, "w", 9, None, True, end), (1, None, "w", 9, {"v": "abc"}, True, end),
        (2, 6, "w", 9, None, True, swept), (3, 7, "z", 1, None, False, None),
    ]  # fmt: skip
    names = ("k", "v", "z", "more", "_raw", "_deleted")
    bound = Bound(1, Lsn(swept))
    reading = table_at(small.spark, small.lake, new.table, bound, as_stored=True)
    assert sorted(map(tuple, reading.rows.select(*names, find_end()).collect())) == expected
    small.merge()
    rows = small.spark.read.format("delta").load(str(small.lake.locate(new.table)))
    assert sorted(map(tuple, rows.select(*names, find_end()).collect())) == expected
    assert "gone" not in rows.columns
    small.merge([delete(new, "3", None, None, None)])
    assert small.rows(new, "k", "_deleted")[-1] == (3, True)


def test_a_copy_of_a_row_by_another_writer_ends_no_merge(
    small: SmallLake, limits: MergeLimits
) -> None:
    small.limits = limits
    small.merge([insert(T, "1", "a", "big"), insert(T, "2", "b", None)])
    place = small.lake.locate(T.table)
    copy = open_delta(place).to_pyarrow_table(filters=[("k", "=", 1)])
    write_deltalake(place.uri, copy, mode="append", storage_options=place.find_options())
    ends = small.commit([update(T, "1", "c", None, unchanged=[2])], [delete(T, "1", None, None)])
    small.merge()
    assert list_rows(small) == [(1, "c", True, ends[1]), (2, "b", False, None)]
    assert small.rows(T, "k", "big")[0] == (1, "big")


def test_a_mode_whose_merge_died_before_its_cut_enters_the_next_cut(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, small.lake = small.lake, replace(small.lake, rules={})
    small.merge([insert(T, "1", "a", None)])
    small.lake = soft

    def die(point: str) -> None:
        if point == "before_cut":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(merge_rounds, "reach", die)
        with pytest.raises(KeyboardInterrupt):
            small.merge()
    small.merge()
    cut = find_cut(small.lake)
    assert cut is not None
    assert cut.versions["public.t"] == small.version(T)
    assert small.merge() == []


@pytest.mark.parametrize("is_one_round", [True, False])
def test_two_backfills_lead_to_the_same_deleted_rows_in_one_round(
    small: SmallLake, *, is_one_round: bool
) -> None:
    old = make_relation("t", "k int4, v text")
    new = make_relation("t", "k int4, v int8")
    other = make_relation("other", "k int4")
    small.merge([insert(old, "1", "1"), insert(old, "2", "2")])
    small.merge([insert(new, "3", "3")])
    (start,) = small.commit([mark(other)])
    small.commit([read(new, "1", "1"), read(new, "3", "3"), sweep(new, start=start)])
    if not is_one_round:
        small.merge()
    (start,) = small.commit([insert(new, "4", "4"), update(new, "1", "11")])
    (gone,) = small.commit([delete(new, "4", None), delete(new, "1", None)])
    (start,) = small.commit([mark(other)])
    (swept,) = small.commit([read(new, "3", "3"), sweep(new, start=start)])
    small.merge()
    first_swept = 16 * 4 + 16
    assert list_rows(small) == [
        (1, 11, True, gone), (2, 2, True, first_swept), (3, 3, False, None), (4, 4, True, gone)
    ]  # fmt: skip
    assert swept > gone


def test_a_statement_names_a_table_as_stored(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", "x"), insert(T, "2", "b", None)])
    (end,) = small.commit([delete(T, "1", None, None)])
    at = small.lake.read_staged(small.lake.read_epochs())
    assert at is not None
    for merged in (False, True):
        if merged:
            small.merge()
        present = answer_query(small.spark, small.lake, "select public.t.k from public.t", at)
        assert [tuple(row) for row in present.rows.collect()] == [(2,)]
        query = "select k, _deleted, unix_millis(_deleted_at) from tables.public.t order by k"
        stored = answer_query(small.spark, small.lake, query, at)
        expected = [(1, True, START_MS + end), (2, False, None)]
        assert [tuple(row) for row in stored.rows.collect()] == expected


class World:
    """A log of random histories, and what a table that keeps deleted rows must have at its end."""

    def __init__(self, folder: Path, seed: int, transactions: int) -> None:
        self.rng = rng = random.Random(seed)
        rules = {"*.*": SOFT, "public.whole": replace_vectors(SOFT)}
        self.lake = Lake(locate_lake(folder / "lake"), rules=rules)
        writer = LogWriter(self.lake)
        writer.begin_epoch(16)
        tables = [
            SourceTable("plain", "d"),
            SourceTable("whole", "f", deferrable=True),
            SourceTable(
                "pair", "d", keys=["k", "code"], columns=["k", "n", "code", "v", "big"],
                key_form="{}.50",
            ),
        ]  # fmt: skip
        self.log = RecordedLog(writer, rng, tables)
        for part in range(4):
            self.log.record(transactions // 4, truncates=0.02)
            writer.commit(repeat=rng.randrange(5))
            if part == 1:
                self.log.missing["added"] = "7"
                tables[0].add_column("added", "7")

    def expect(self, table: SourceTable) -> Truth:
        """The last values of each key, and the end LSN of its deletion if it is deleted."""
        last: Truth = {}
        deleted: dict[tuple[str, ...], str] = {}
        for end, truth in sorted(self.log.truths[table.name].items()):
            deleted |= {key: str(end) for key in last.keys() - truth.keys() - deleted.keys()}
            for key, texts in truth.items():
                last[key] = texts
                deleted.pop(key, None)
        added = ["7"] if "added" in table.columns else []
        width = len(table.columns)
        return {key: [*(texts + added)[:width], deleted.get(key)] for key, texts in last.items()}

    def read(self, spark: SparkSession, lake: Lake, table: SourceTable) -> DataFrame:
        path = str(lake.locate(self.log.announce(table).table))
        return spark.read.format("delta").load(path)


def replace_vectors(rule: TableSettings) -> TableSettings:
    return rule.model_copy(update={"deletion_vectors": True})


def copy_of(world: World, folder: Path) -> Lake:
    copied = Lake(locate_lake(folder / "lake"), rules=world.lake.rules)
    copy_lake(world.lake.root, copied.root)
    return copied


def merge_variously(
    spark: SparkSession, world: World, tmp_path: Path
) -> Iterator[tuple[str, Lake]]:
    """Merge copies of a lake in one round, and in several with other limits."""
    entries = sum(len(t) for rows in world.log.logged.values() for t in rows)
    for name, rounds, limits in [
        ("at once", 1, DEFAULT_LIMITS),
        ("in rounds", world.rng.randint(3, 6), MERGE_ONLY),
    ]:
        lake = copy_of(world, tmp_path / name)
        merge_until(spark, lake, round_rows=max(1, entries // rounds), limits=limits)
        assert not read_requests(lake), "no merge has found damage"
        yield name, lake


def read_ends(rows: DataFrame, table: SourceTable) -> Truth:
    """The rows of a table by key, as texts, with the end LSN of the deletion."""
    wider = SourceTable(
        table.name, table.identity, keys=table.keys, columns=[*table.columns, "_end"]
    )
    return read_texts(rows.withColumn("_end", find_end()), wider)


@pytest.mark.parametrize(
    ("seed", "transactions"),
    [
        pytest.param(SEED, 80, marks=pytest.mark.timeout(900)),
        *(
            pytest.param(seed, 300, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])
            for seed in range(12)
        ),
    ],
)
def test_a_deleted_row_has_its_last_values_wherever_rounds_end(
    spark: SparkSession, tmp_path: Path, seed: int, transactions: int
) -> None:
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails.
    world = World(tmp_path, seed, transactions)
    stored: dict[str, set[str]] = {}
    for name, lake in merge_variously(spark, world, tmp_path):
        for table in world.log.tables:
            rows = world.read(spark, lake, table)
            assert read_ends(rows, table) == world.expect(table), (name, table.name)
            assert rows.where("_deleted is null or _deleted != (_deleted_at is not null)").isEmpty()
            found = {str(row) for row in rows.select(*sorted(rows.columns)).collect()}
            assert stored.setdefault(table.name, found) == found, (name, table.name)
            end = max(world.log.truths[table.name])
            present = table_at(
                spark, lake, world.log.announce(table).table, world.log.bound(end)
            ).rows
            assert read_texts(present, table) == table.truth()
