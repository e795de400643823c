"""Histories that break plausible folds, merges and cuts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from cdc_core.vocabulary import Lsn, Relation
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.ledger import find_cut, read_states
from spark_jobs.query.read_bound import find_bound_at
from tests.spark.relations import Entry, delete, insert, make_relation, truncate, update
from tests.spark.small_lake import SmallLake

MARK: Entry = (
    make_relation("unused", "k int4"),
    {"table": None, "relation_version": None, "op": "mark"},
)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SmallLake:
    return SmallLake(spark, tmp_path)


def test_history_06_a_halted_table_is_never_passed_off_as_whole(lake: SmallLake) -> None:
    before, after = make_relation("t", "k int4, v text"), make_relation("t", "k int4")
    other = make_relation("other", "k int4")
    lake.merge([insert(before, "1", "a"), insert(other, "1")])
    halting = lake.commit(
        [insert(before, "2", "b")],
        [insert(after, "3"), insert(other, "2")],
        [insert(after, "4"), insert(other, "3")],
    )
    lake.merge()
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.halted == ("public.t",)
    assert cut.merged["public.t"] == Bound(1, Lsn(halting[1] - 8)), "just before the transaction"
    for lsn in (halting[1], halting[2]):
        reading = lake.at(before, lsn)
        assert reading.halt is not None
        assert reading.halt.reason == "column v was dropped"
        assert reading.through == cut.merged["public.t"]
        assert lake.plain(reading.rows, before) == [(1, "a"), (2, "b")]
    assert lake.at(before, halting[0]).halt is None
    assert lake.rows(other) == [(1,), (2,), (3,)]


def test_history_12_a_new_epoch_with_smaller_lsns_outranks_the_old(lake: SmallLake) -> None:
    table = make_relation("t", "k int4, v text, big text")
    lake.log.lsn = 1 << 40
    lake.merge([insert(table, "1", "old", "long"), insert(table, "2", "old", "long")])
    tail = lake.commit([update(table, "2", "unmerged tail", "tail")])[0]
    lake.log.begin_epoch(1000)
    ends = lake.commit(
        [update(table, "1", "new", None, unchanged=[2]), insert(table, "3", "new", "x")],
        [update(table, "2", "new", None, unchanged=[2])],
    )
    assert lake.plain(lake.at(table, tail, epoch=1).rows, table) == [
        (1, "old", "long"),
        (2, "unmerged tail", "tail"),
    ]
    both = [(1, "new", "long"), (2, "new", "tail"), (3, "new", "x")]
    assert lake.plain(lake.at(table, ends[1]).rows, table) == both
    lake.merge()
    assert lake.rows(table) == both
    lake.merge([delete(table, "3", None, None)])
    assert lake.rows(table) == both[:2]
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.bound == find_bound_at(lake.lake, "live") == Bound(2, Lsn(ends[1] + 16))
    with pytest.raises(LakeError, match="0/10 to 100/20, or from 0/3E8 to 0/418"):
        find_bound_at(lake.lake, Lsn(1))


def test_history_16_rows_with_inexact_keys_do_not_multiply(lake: SmallLake) -> None:
    table = make_relation("t", "d date, n numeric, v text", key="d n")
    keys = [
        ("infinity", "NaN"),
        ("2024-01-01", "NaN"),
        ("0044-03-15 BC", "1.0"),
        ("infinity", "1.00"),
    ]
    lake.merge([insert(table, *key, "first") for key in keys])
    lake.merge([update(table, *key, "second") for key in keys])
    lake.merge(
        [
            delete(table, *keys[0], None),
            update(table, "infinity", "1.0", "moved", old=["infinity", "1.00", None]),
        ]
    )
    assert lake.rows(table, "_key", "v") == [
        ('["0044-03-15 BC","1.0"]', "second"),
        ('["2024-01-01","NaN"]', "second"),
        ('["infinity","1.0"]', "moved"),
    ]


@pytest.mark.parametrize("identity", ["d", "f"])
def test_history_21_a_shift_of_deferrable_keys_keeps_every_row(
    lake: SmallLake, identity: str
) -> None:
    merged = make_relation("merged", "k int4, v text", identity=identity)
    fresh = make_relation("fresh", "k int4, v text", identity=identity)

    def shift(table: Relation, order: tuple[int, ...]) -> list[Entry]:
        old = {k: [str(k), f"row {k}" if identity == "f" else None] for k in order}
        return [update(table, str(k + 1), f"row {k}", old=old[k]) for k in order]

    def fill(table: Relation) -> list[Entry]:
        return [insert(table, str(k), f"row {k}") for k in (1, 2, 3)]

    shifted = [(2, "row 1"), (3, "row 2"), (4, "row 3")]
    lake.merge(fill(merged))
    lake.merge(fill(fresh), shift(fresh, (1, 2, 3)) + shift(merged, (1, 2, 3)))
    assert lake.rows(fresh) == lake.rows(merged) == shifted
    if identity == "d":
        return
    orders = list(itertools.permutations((1, 2, 3)))
    tables = [
        make_relation(f"order{i}", "k int4, v text", identity="f") for i in range(len(orders))
    ]
    ends = lake.commit(
        [entry for table in tables for entry in fill(table)],
        [e for table, order in zip(tables, orders, strict=True) for e in shift(table, order)],
    )
    for table in tables[::2]:
        assert lake.plain(lake.at(table, ends[1]).rows, table) == shifted


def test_history_21_a_departure_removes_the_version_that_it_names(lake: SmallLake) -> None:
    merged, fresh = (
        make_relation(name, "k int4, v text", identity="f") for name in ("merged", "fresh")
    )
    lake.merge([insert(merged, "2", "stays")])
    # A deferrable key lets a second row of it come, and go, inside one transaction.
    lake.merge(
        [insert(fresh, "2", "stays")],
        [
            change
            for table in (merged, fresh)
            for change in (
                insert(table, "2", "goes"),
                delete(table, "2", "goes"),
                insert(table, "3", "stays too"),
                insert(table, "3", "goes too"),
                delete(table, "3", "goes too"),
            )
        ],
    )
    assert lake.rows(merged) == lake.rows(fresh) == [(2, "stays"), (3, "stays too")]


def test_history_24_a_table_without_changes_is_merged_through_the_newest_cut(
    lake: SmallLake,
) -> None:
    idle, busy = make_relation("idle", "k int4"), make_relation("busy", "k int4")
    lake.merge([insert(idle, "1"), insert(busy, "1")])
    version = lake.version(idle)
    lake.merge([insert(busy, "2")])
    assert len(lake.merge([MARK])) == 1, "a mark alone moves the cut"
    assert lake.merge() == [], "and starts no merge after that"
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.merged == {"public.idle": cut.bound, "public.busy": cut.bound}
    assert cut.versions["public.idle"] == lake.version(idle) == version


def test_history_31_entries_of_one_transaction_are_ordered_by_seq_alone(lake: SmallLake) -> None:
    one, two = make_relation("one", "k int4, v text"), make_relation("two", "k int4, v text")
    lake.merge([insert(one, "1", "old"), insert(two, "1", "old")])
    entries = [
        insert(one, "2", "before"),
        MARK,
        truncate(one),
        truncate(two),
        MARK,
        insert(one, "2", "after"),
        update(one, "2", "last"),
        insert(two, "3", "after"),
    ]
    # Some entries were filtered where they were decoded: numbers are missing, none is repeated.
    numbered = [(r, e | {"seq": seq * 3}) for seq, (r, e) in enumerate(entries)]
    lake.log.add(numbered)
    lake.log.pending.reverse()
    lake.log.commit()
    lake.merge()
    assert lake.rows(one) == [(2, "last")]
    assert lake.rows(two) == [(3, "after")]
    assert {state.state for state in read_states(lake.lake).values()} == {"streaming"}
