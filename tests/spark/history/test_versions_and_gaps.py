"""Versions outlive halts, new shapes and missing changes, and take nothing across them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from deltalake import DeltaTable

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.ledger import find_cut, read_states
from spark_jobs.query.versions_at import versions_at
from tests.spark.history.versions import (
    HISTORY,
    NAME,
    VERSIONS,
    T,
    backfill,
    list_at,
    list_versions,
    open_history,
)
from tests.spark.relations import (
    delete,
    insert,
    make_relation,
    mark,
    read,
    sweep,
    update,
)
from tests.spark.small_lake import SmallLake


@pytest.mark.parametrize("is_one_round", [True, False])
def test_versions_outlive_a_halt_and_a_new_shape(small: SmallLake, *, is_one_round: bool) -> None:
    rounds = 1000 if is_one_round else 1
    old = make_relation("t", "k int4, v text, w text, n int4")
    # v is renamed, w is dropped, n has another type, and x is new.
    new = make_relation(
        "t",
        "k int4, value text, n text, x text",
        value={"attnum": 2},
        n={"attnum": 4},
        x={"attnum": 5},
    )
    small.commit([insert(old, "1", "a", "old", "7"), insert(old, "2", "a", "old", "8")])
    small.commit([update(old, "1", "b", "older", "9"), insert(old, "3", "a", None, None)])
    (halting,) = small.commit([update(new, "1", "lost", "9", None)])
    small.merge(round_rows=rounds)
    assert read_states(small.lake)[NAME].state == "halted"
    (start,) = small.commit([mark(T)])
    (seen,) = small.commit([read(new, "1", "lost", "9", None), read(new, "2", "a", "8", None)])
    (swept,) = small.commit([sweep(new, start=start)])
    small.merge([insert(new, "4", "later", "1", "x")], round_rows=rounds)
    assert read_states(small.lake)[NAME].state == "streaming"
    names = ("k", "value", "w", "n", "x")
    assert [row[:5] + row[6:] for row in list_versions(small, *names)] == [
        (1, "a", "old", "7", None, halting - 16, "insert", "update"),
        (1, "b", "older", "9", None, seen, "update", "read"),
        (1, "lost", None, "9", None, None, "read", None),
        (2, "a", "old", "8", None, None, "insert", None),
        (3, "a", None, None, None, swept, "insert", "sweep"),
        (4, "later", None, "1", "x", None, "insert", None),
    ]
    # The dropped column stays through further merges, also if a new one takes its name.
    again = make_relation(
        "t",
        "k int4, value text, n text, x text, w text",
        value={"attnum": 2}, n={"attnum": 4}, x={"attnum": 5}, w={"attnum": 6},
    )  # fmt: skip
    small.merge([update(again, "2", "b", "8", None, "new")], round_rows=rounds)
    rows = open_history(small).where("k = 2").orderBy("_from_lsn").select("w", "w~20~282~29")
    assert [tuple(row) for row in rows.collect()] == [(None, "old"), ("new", None)]
    assert small.rows(again, "k", "w")[1] == (2, "new")
    delta_rs = DeltaTable(small.lake.locate_target(VERSIONS).uri)
    assert pl.read_delta(delta_rs).height == delta_rs.to_pyarrow_table().num_rows == 7


def test_versions_outlive_another_key_and_a_new_epoch(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", "x"), insert(T, "2", "b", None)])
    other = make_relation("t", "k int4, v text, big text", key="v")
    small.merge([insert(other, "3", "c", None)])
    assert read_states(small.lake)[NAME].state == "halted"
    (start,) = small.commit([mark(T)])
    small.commit([read(other, "1", "a", "x"), read(other, "3", "c", None)])
    small.merge([sweep(other, start=start)])
    assert [row[:1] + row[3:] for row in list_versions(small, "k")] == [
        (1, "insert", "sweep"), (1, "read", None), (2, "insert", "sweep"), (3, "read", None),
    ]  # fmt: skip
    small.log.begin_epoch(8)
    ends = small.commit([update(other, "1", "a", "y")])
    small.merge()
    newest = open_history(small).where("_is_current").orderBy("k")
    found = newest.select("k", "big", "_from_epoch", "_from_lsn").collect()
    assert tuple(found[0]) == (1, "y", 2, ends[0])
    closed = open_history(small).where("_to_epoch = 2").select("k", "big").collect()
    assert [tuple(row) for row in closed] == [(1, "x")]


def test_a_hole_is_not_filled_with_a_value_from_after_missing_changes(small: SmallLake) -> None:
    small.merge([update(T, "1", "a", None, unchanged=[2])])
    other = make_relation("t", "k int4, v text, big text", v={"attnum": 9})
    small.merge([insert(other, "2", "a", None)])
    (start,) = small.commit([mark(T)])
    (seen,) = small.commit([read(other, "1", "a", "later"), read(other, "2", "a", None)])
    small.merge([sweep(other, start=start)])
    assert list_versions(small, "k", "v", "big", "_holes")[:2] == [
        (1, None, None, ["big"], seen - 48, seen, "update", "read"),
        (1, "a", "later", None, seen, None, "read", None),
    ]


def test_values_that_a_rule_now_hides_go_from_all_versions(small: SmallLake) -> None:
    small.merge([insert(T, "1", "secret", "x"), insert(T, "2", None, "x")])
    (changed,) = small.commit([update(T, "1", "other", None, unchanged=[2])])
    small.merge()
    hashed = make_relation("t", "k int4, v text, big text", v={"hashed_by": "a"})
    small.merge([insert(hashed, "3", "hash", None)])
    assert read_states(small.lake)[NAME].state == "halted"
    (start,) = small.commit([mark(T)])
    (seen,) = small.commit([read(hashed, "1", "hash", "x"), read(hashed, "2", None, "x")])
    small.merge([sweep(hashed, start=start)])
    found = list_versions(small, "k", "v", "big", "_holes", "_continues")
    assert [row[:5] + row[6:] for row in found] == [
        (1, None, "x", ["v"], False, changed, "insert", "update"),
        (1, None, "x", ["v"], False, seen, "update", "read"),
        (1, "hash", "x", None, False, None, "read", None),
        (2, None, "x", ["v"], False, seen, "insert", "read"),
        (2, None, "x", None, False, None, "read", None),
    ]
    excluded = make_relation("t", "k int4, big text", big={"attnum": 3})
    excluded = replace(excluded, left_out=(2,))
    small.merge([insert(excluded, "4", None)])
    (start,) = small.commit([mark(T)])
    small.commit([read(excluded, "1", "x"), read(excluded, "2", "x")])
    small.merge([sweep(excluded, start=start)])
    assert "v" not in open_history(small).columns


def test_a_column_that_is_excluded_twice_is_hidden_twice(small: SmallLake) -> None:
    without = make_relation("t", "k int4, big text", big={"attnum": 3})
    without = replace(without, left_out=(2,))
    small.merge([insert(without, "1", "x")])
    small.merge([insert(replace(T, left_out=(2,)), "2", "secret", "x")])
    backfill(small, (replace(T, left_out=(2,)), "1", "secret", "x"))
    small.merge()
    assert "v" in open_history(small).columns
    small.merge([insert(without, "3", "x")])
    backfill(small, (without, "1", "x"))
    small.merge()
    assert "v" not in open_history(small).columns
    assert "secret" not in str(open_history(small).collect())


def test_a_column_that_is_dropped_after_it_was_hashed_is_hidden(small: SmallLake) -> None:
    small.merge([insert(T, "1", "secret", "x")])
    small.merge([insert(make_relation("t", "k int4, v text, big text", v={"hashed_by": "a"}),
                        "2", "hash", "x")])  # fmt: skip
    dropped = make_relation("t", "k int4, big text", big={"attnum": 3})
    backfill(small, (dropped, "1", "x"))
    small.merge()
    assert "secret" not in str(open_history(small).collect())


def test_an_idle_history_is_whole_after_the_log_was_trimmed(small: SmallLake) -> None:
    other = make_relation("other", "k int4")
    (first,) = small.commit([insert(T, "1", "a", None)])
    small.merge()
    (last,) = small.commit([insert(other, "1")])
    small.merge()
    small.log.trim(last)
    reading = versions_at(small.spark, small.lake, VERSIONS, Bound(1, Lsn(last)))
    assert (reading.halt, reading.through.lsn) == (None, Lsn(last))
    (changed,) = small.commit([update(T, "1", "b", None)])
    assert list_versions(small, "v", rows=list_at(small, changed)) == [
        ("a", first, changed, "insert", "update"),
        ("b", changed, None, "update", None),
    ]


def test_a_history_that_lacks_changes_halts_until_a_backfill(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", "x")])
    rules, small.lake = small.lake.rules, replace(small.lake, rules={})
    (gone,) = small.commit([update(T, "1", "b", "y")])
    small.merge()
    small.log.trim(gone)
    small.lake = replace(small.lake, rules=rules)
    small.merge([update(T, "1", "c", None, unchanged=[2])])
    assert read_states(small.lake)[NAME].state == "halted"
    assert [row[0] for row in list_versions(small, "v")] == ["a"]
    assert versions_at(small.spark, small.lake, VERSIONS, Bound(1, Lsn(small.log.lsn))).halt
    backfill(small, (T, "1", "c", "y"))
    small.merge()
    assert read_states(small.lake)[NAME].state == "streaming"
    assert [row[:2] for row in list_versions(small, "v", "big")] == [("a", "x"), ("c", "y")]


def test_a_read_inside_a_past_halt_says_so(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)])
    other = make_relation("t", "k int4, v text, big text", v={"attnum": 9})
    (inside,) = small.commit([insert(other, "2", "a", None)])
    small.merge()
    backfill(small, (other, "1", "b", None), (other, "2", "a", None))
    small.merge()
    reading = versions_at(small.spark, small.lake, VERSIONS, Bound(1, Lsn(inside)))
    assert reading.halt is not None
    assert reading.through.lsn < inside


def test_a_history_that_begins_after_the_log_was_trimmed_has_the_rows_of_the_oldest_cut(
    small: SmallLake,
) -> None:
    small.lake = replace(small.lake, rules={})
    small.merge([insert(T, "1", "a", "x"), insert(T, "2", "a", "y")])
    first = find_cut(small.lake)
    assert first is not None
    small.merge([update(T, "1", "b", None, unchanged=[2])])
    small.log.trim(int(first.bound.lsn))
    small.lake = replace(small.lake, rules={"*.*": HISTORY})
    (changed,) = small.commit([delete(T, "2", None, None)])
    expected = [
        (1, "a", "x", first.bound.lsn, changed - 16, "base", "update"),
        (1, "b", "x", changed - 16, None, "update", None),
        (2, "a", "y", first.bound.lsn, changed, "base", "delete"),
    ]
    assert list_versions(small, "k", "v", "big", rows=list_at(small, changed)) == expected
    small.merge()
    assert list_versions(small, "k", "v", "big") == expected
