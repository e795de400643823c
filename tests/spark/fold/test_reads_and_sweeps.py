"""What a backfill brings and what its end removes, in each way that a table is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Relation
from spark_jobs.lake.lake import open_table
from spark_jobs.target.result import WritePlan
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

T = make_relation("t", "k int4, v text")
MISSED = make_relation("missed", "k int4, v text")
EMPTY = make_relation("empty", "k int4, v text")
MERGED = make_relation("merged", "k int4, v text, big text")
CUT = make_relation("cut", "k int4, v text")

Rows = list[tuple[object, ...]]


@pytest.mark.parametrize("is_small", [True, False], ids=["written_anew", "merged"])
def test_a_backfill_repairs_a_table(spark: SparkSession, tmp_path: Path, *, is_small: bool) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge([insert(MERGED, str(k), "lake", "long") for k in range(1, 9)])
    small.limits = SPARK_ONLY if is_small else MERGE_ONLY
    (start,) = small.commit([update(MERGED, "1", "begun", None, unchanged=[2])])
    reads: list[Entry] = [
        # 1 is dropped as stale: the log has it; 2 differs; 3 is equal; 4 and 5 are gone.
        read(MERGED, "2", "source", None),
        read(MERGED, "3", "lake", "long"),
        read(MERGED, "9", "never seen", None),
    ]
    during: list[Entry] = [
        insert(MERGED, "10", "during", None),
        update(MERGED, "6", "during", None, unchanged=[2]),
        # Older than the read of 9, which a later delete removes for good.
        delete(MERGED, "7", None, None),
    ]
    small.commit(reads, during, [delete(MERGED, "9", None, None)])
    (end,) = small.commit([sweep(MERGED, start=start)])
    at_end = small.at(MERGED, end)
    expected: Rows = [
        (1, "begun", "long"),
        (10, "during", None),
        (2, "source", None),
        (3, "lake", "long"),
        (6, "during", "long"),
    ]
    assert small.plain(at_end.rows, MERGED) == expected
    (done,) = small.merge()
    assert small.rows(MERGED) == expected
    told = done.tables["public.merged"]
    assert (told.rows, told.inserted, told.updated, told.deleted) == (5, 1, 4, 4)
    assert told.way is (WritePlan.REWRITE if is_small else WritePlan.MERGE)
    # A sweep that finds nothing moves the bound alone.
    files = list_files(small, MERGED)
    (again,) = small.merge([sweep(MERGED, start=start)])
    told = again.tables["public.merged"]
    assert (told.rows, told.inserted, told.updated, told.deleted) == (5, 0, 0, 0)
    assert told.way is WritePlan.MOVE_BOUND
    assert list_files(small, MERGED) == files
    assert small.merge() == []
    # What came before the sweep is older than nothing that comes after it.
    small.merge([insert(MERGED, "4", "again", None)])
    assert small.rows(MERGED, "k") == [(1,), (10,), (2,), (3,), (4,), (6,)]


def list_files(small: SmallLake, relation: Relation) -> list[str]:
    table = open_table(small.lake.locate(relation.table))
    assert table is not None
    return sorted(table.file_uris())


def test_a_sweep_removes_what_only_the_same_range_brought(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path)
    (start,) = small.commit([insert(T, "1", "before"), insert(T, "2", "before")])
    small.merge(
        [read(T, "2", "source")],
        [sweep(T, start=start + 8)],
        [insert(T, "3", "after")],
        # A table of which nothing was ever said but that it is empty.
        [sweep(EMPTY, start=start)],
        [insert(CUT, "1", "a"), truncate(CUT), sweep(CUT, start=start)],
    )
    assert small.rows(T) == [(2, "source"), (3, "after")]
    assert small.rows(EMPTY) == small.rows(CUT) == []


NUMBERS = make_relation("numbers", "k int8, v text")
PAIRS = make_relation("pairs", "k int4, j text, v text", key="k j")
UUIDS = make_relation("uuids", "k uuid, v text")
BYTES = make_relation("bytes", "k bytea, v text")
DATES = make_relation("dates", "k date, v text")
RANGED: dict[str, tuple[Relation, list[list[str]], list[str], list[str] | None, list[int]]] = {
    # The keys, the bounds, and the places of the keys that are left.
    "numbers": (NUMBERS, [[k] for k in ("-10", "-9", "2", "10", "11")], ["-9"], ["10"], [0, 4]),
    "a_pair": (
        PAIRS,
        [["1", "b"], ["2", "B"], ["2", "a"], ["2", "é"], ["10", ""]],
        ["2", "a"],
        ["10", ""],
        [0, 1],
    ),
    "the_first_of_a_pair": (PAIRS, [["13", "x"], ["14", "x"], ["15", "x"]], ["14"], ["14"], [0, 2]),
    "uuids": (UUIDS, [[f"{k}0000000-0000-0000-0000-000000000000"] for k in "19af"],
              ["9fffffff-0000-0000-0000-000000000000"], None, [0, 1]),
    "bytes": (BYTES, [["\\x"], ["\\x7f"], ["\\x80"], ["\\xff00"]], ["\\x7f00"], ["\\xff"],
              [0, 1, 3]),
    "dates": (
        DATES,
        [[k] for k in ("2020-01-31", "2020-02-01", "infinity", "0044-03-15 BC", "12020-02-10")],
        ["2020-02-01"],
        ["2020-02-29"],
        [0, 2, 3, 4],
    ),
}  # fmt: skip


def test_a_sweep_of_a_range_removes_what_lies_in_it(spark: SparkSession, tmp_path: Path) -> None:
    small = SmallLake(spark, tmp_path)
    for relation, keys, *_ in RANGED.values():
        small.commit([insert(relation, *key, "old") for key in keys])
    small.merge([insert(NUMBERS, "5", "old"), insert(NUMBERS, "7", "old")])
    (start,) = small.commit([update(NUMBERS, "5", "changed meanwhile")])
    small.commit([read(NUMBERS, "7", "read")])
    for relation, _, low, high, _ in RANGED.values():
        small.commit([sweep(relation, start=start, low=low, high=high)])
    # Of another range, and of nothing that is older.
    (end,) = small.commit(
        [sweep(NUMBERS, start=start, low=["1000"]), sweep(NUMBERS, start=8, high=["1000"])]
    )
    expected: dict[str, Rows] = {}
    for name in {relation.table.name for relation, *_ in RANGED.values()}:
        cases = [case for case in RANGED.values() if case[0].table.name == name]
        left = [keys[place] for _, keys, _, _, places in cases for place in places]
        expected[name] = sorted(((*key, "old") for key in left), key=repr)
    expected["numbers"] += [("5", "changed meanwhile"), ("7", "read")]
    at_end = small.at(NUMBERS, end)
    text = [f"cast({name} as string)" for name in ("k", "v")]
    assert {tuple(row) for row in at_end.rows.selectExpr(*text).collect()} == set(
        expected["numbers"]
    )
    (done,) = small.merge(limits=MERGE_ONLY)
    assert {merged.way for merged in done.tables.values()} == {WritePlan.MERGE}
    for name, rows in expected.items():
        relation = next(r for r, *_ in RANGED.values() if r.table.name == name)
        assert read_texts(small, relation) == sorted(rows, key=repr), name


def read_texts(small: SmallLake, relation: Relation) -> Rows:
    """Rows as texts; a key that its type does not hold stands in `_raw`."""
    path = str(small.lake.locate(relation.table))
    rows = small.spark.read.format("delta").load(path)
    texts = []
    for column in relation.columns:
        value = f"case when {column.name} is not null then cast({column.name} as string) end"
        if column.type_name == "bytea":
            value = rf"concat('\\x', lower(hex({column.name})))"
        texts.append(f"coalesce({value}, _raw['{column.name}'])")
    return sorted((tuple(row) for row in rows.selectExpr(*texts).collect()), key=repr)


@pytest.mark.parametrize("is_small", [True, False], ids=["written_whole", "merged"])
@pytest.mark.parametrize("place", ["a_file_of_its_own", "a_file_with_others"])
def test_a_row_without_a_position_is_older_than_every_sweep(
    spark: SparkSession,
    tmp_path: Path,
    place: str,
    *,
    is_small: bool,
) -> None:
    small = SmallLake(spark, tmp_path)
    (start,) = small.commit([insert(T, str(k), "lake") for k in range(1, 5)])
    small.merge()
    small.limits = SPARK_ONLY if is_small else MERGE_ONLY
    small.merge([read(T, str(k), "source") for k in range(1, 5)])
    table = f"delta.`{small.lake.locate(T.table)}`"
    if place == "a_file_of_its_own":
        spark.sql(f"insert into {table} (k, v) values (7, 'by hand')")
    else:
        spark.sql(f"update {table} set _epoch = null, _seq = null where k = 2")
    (done,) = small.merge([sweep(T, start=start)])
    way = done.tables["public.t"].way
    assert way is (WritePlan.REWRITE if is_small else WritePlan.MERGE)
    expected = [1, 2, 3, 4] if place == "a_file_of_its_own" else [1, 3, 4]
    assert small.rows(T, "k") == [(k,) for k in expected]
