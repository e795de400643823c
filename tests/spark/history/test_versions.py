"""A history has each version of a row, with what opened and closed it, by end LSNs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession

from cdc_core.errors import MergeError
from cdc_core.settings import TableSettings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, TableMode
from spark_jobs.history.files import list_history_files
from spark_jobs.lake.lake import Bound, open_table
from spark_jobs.lake.ledger import find_cut, read_states
from spark_jobs.maintenance.maintenance import maintain
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.merge import history_merge
from spark_jobs.query.sql import answer_query
from spark_jobs.query.versions_at import versions_at
from spark_jobs.target.result import WritePlan
from tests.spark.log_writer import EPOCH_START
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
from tests.spark.small_lake import SmallLake

HISTORY = TableSettings(modes=(TableMode.CURRENT, TableMode.HISTORY))
T = make_relation("t", "k int4, v text, big text")
VERSIONS = Target(T.table, TargetKind.HISTORY)
NAME = "history/public.t"
LIFE = ("_from_lsn", "_to_lsn", "_opened_by", "_closed_by")


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a lake whose tables also have a history."""
    made = SmallLake(spark, tmp_path)
    made.lake = replace(made.lake, rules={"*.*": HISTORY})
    return made


def open_history(small: SmallLake, target: Target = VERSIONS) -> DataFrame:
    return small.spark.read.format("delta").load(small.lake.locate_target(target).uri)


def list_versions(
    small: SmallLake, *columns: str, rows: DataFrame | None = None
) -> list[tuple[Any, ...]]:
    """Some columns of the versions and their lives, by key and time."""
    found = open_history(small) if rows is None else rows
    ordered = found.orderBy("k", "_from_epoch", "_from_lsn")
    return [tuple(row) for row in ordered.select(*columns, *LIFE).collect()]


def list_at(small: SmallLake, lsn: int) -> DataFrame:
    reading = versions_at(small.spark, small.lake, VERSIONS, Bound(small.log.epoch, Lsn(lsn)))
    assert reading.halt is None
    return reading.rows


def closed_files(small: SmallLake) -> set[str]:
    table = open_table(small.lake.locate_target(VERSIONS))
    assert table is not None
    return {file.name for file in list_history_files(table) if not file.may_be_open}


@pytest.mark.parametrize("is_one_round", [True, False])
def test_each_kind_of_change_opens_and_closes_versions(
    small: SmallLake, *, is_one_round: bool
) -> None:
    transactions = [
        [insert(T, "1", "a", "x"), insert(T, "2", "a", "y"), insert(T, "3", "a", "z")],
        [update(T, "1", "b", None, unchanged=[2]), update(T, "1", "c", None, unchanged=[2])],
        [update(T, "9", "a", None, old=["2", None, None], unchanged=[2])],
        [delete(T, "3", None, None)],
        [insert(T, "3", "again", None), delete(T, "3", None, None)],
        [insert(T, "3", "back", None)],
        [delete(T, "1", None, None), insert(T, "1", "new", None)],
        [truncate(T), insert(T, "1", "after", None)],
    ]
    ends = [small.commit(one)[0] for one in transactions if not is_one_round]
    if is_one_round:
        ends = small.commit(*transactions)
    small.merge(round_rows=100 if is_one_round else 1)
    one, two, moved, gone, _, back, anew, cut = ends
    expected = [
        (1, "a", "x", one, two, "insert", "update"),
        (1, "c", "x", two, anew, "update", "insert"),
        (1, "new", None, anew, cut, "insert", "truncate"),
        (1, "after", None, cut, None, "insert", None),
        (2, "a", "y", one, moved, "insert", "update"),
        (3, "a", "z", one, gone, "insert", "delete"),
        (3, "back", None, back, cut, "insert", "truncate"),
        (9, "a", "y", moved, cut, "update", "truncate"),
    ]
    assert list_versions(small, "k", "v", "big") == expected
    assert small.rows(T, "k", "v") == [(1, "after")]
    closed = open_history(small).where("not _is_current").count()
    assert closed == 7
    assert list_versions(small, "k", rows=list_at(small, two).where("_is_current")) == [
        (1, two, None, "update", None),
        (2, one, None, "insert", None),
        (3, one, None, "insert", None),
    ]


def test_a_history_and_its_place_are_in_the_cut(small: SmallLake) -> None:
    (done,) = small.merge([insert(T, "1", "a", None)], [update(T, "1", "b", None)])
    told = done.tables[NAME]
    assert (told.rows, told.inserted, told.updated, told.way) == (2, 2, 1, WritePlan.REWRITE)
    (done,) = small.merge([update(T, "1", "c", None), insert(T, "2", "a", None)])
    told = done.tables[NAME]
    assert (told.rows, told.inserted, told.updated, told.way) == (
        *(4, 2, 1),
        WritePlan.REWRITE_FILES,
    )
    cut = find_cut(small.lake)
    assert cut is not None
    assert cut.versions[NAME] == told.version
    assert small.merge() == []


@pytest.mark.parametrize("is_one_round", [True, False])
def test_a_read_confirms_an_equal_version_and_closes_another(
    small: SmallLake, *, is_one_round: bool
) -> None:
    rounds = 1000 if is_one_round else 1
    made = small.commit([insert(T, str(k), "a", "x") for k in (1, 2, 3)])[0]
    (start,) = small.commit([mark(T)])
    (seen,) = small.commit([read(T, "1", "a", "x"), read(T, "2", "other", "x")])
    (swept,) = small.commit([sweep(T, start=start)])
    small.merge(round_rows=rounds)
    expected = [
        (1, "a", made, None, "insert", None),
        (2, "a", made, seen, "insert", "read"),
        (2, "other", seen, None, "read", None),
        (3, "a", made, swept, "insert", "sweep"),
    ]
    assert list_versions(small, "k", "v") == expected
    for _ in range(2):  # Backfills of what is there add no version.
        (start,) = small.commit([mark(T)])
        small.commit([read(T, "1", "a", "x"), read(T, "2", "other", "x")])
        small.commit([sweep(T, start=start)])
        small.merge(round_rows=rounds)
        assert list_versions(small, "k", "v") == expected
    positions = open_history(small).where("k = 1").select("_commit_lsn").collect()
    assert positions[0][0] > start, "the version has the position of the newest read"


def test_values_that_only_look_equal_are_other_values(small: SmallLake) -> None:
    odd = make_relation("t", "k int4, f float8, n numeric, d date")
    small.merge([insert(odd, "1", "0", "1.0", "2026-01-01"), insert(odd, "2", "NaN", "1", None)])
    small.merge([read(odd, "1", "-0", "1.0", "2026-01-01"), read(odd, "2", "NaN", "1", None)])
    assert [row[0] for row in list_versions(small, "k")] == [1, 1, 2]
    small.merge(
        [read(odd, "1", "-0", "1.00", "2026-01-01"), read(odd, "2", "NaN", "1", "infinity")]
    )
    assert [row[0] for row in list_versions(small, "k")] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("is_one_round", [True, False])
def test_a_read_fills_the_holes_of_each_version_that_has_them(
    small: SmallLake, *, is_one_round: bool
) -> None:
    rounds = 1000 if is_one_round else 1
    # The log begins with a change of a row that is older, and lacks its large value.
    small.commit(
        [update(T, "1", "a", None, unchanged=[2]), update(T, "2", "a", None, unchanged=[2])]
    )
    small.commit([update(T, "1", "b", None, unchanged=[2])])
    small.commit([update(T, "1", "c", None, unchanged=[2])])
    small.commit([update(T, "2", "b", "sent")])
    small.merge(round_rows=rounds)
    assert list_versions(small, "k", "v", "_holes")[2][:3] == (1, "c", ["big"])
    small.merge([read(T, "1", "c", "found"), read(T, "2", "b", "sent")], round_rows=rounds)
    assert [row[:4] for row in list_versions(small, "k", "v", "big", "_holes")] == [
        (1, "a", "found", None),
        (1, "b", "found", None),
        (1, "c", "found", None),
        (2, "a", None, ["big"]),
        (2, "b", "sent", None),
    ]
    assert len(closed_files(small)) >= 1


def test_a_merge_reads_no_file_of_closed_versions(small: SmallLake) -> None:
    small.merge([insert(T, str(k), "a", None) for k in range(5)])
    small.merge([update(T, "1", "b", None)])
    before = closed_files(small)
    assert before
    small.merge([update(T, "1", "c", None), update(T, "2", "b", None)])
    small.merge([read(T, "1", "c", None), delete(T, "3", None, None)])
    assert before < closed_files(small), "they stay as they are"


@pytest.mark.parametrize("is_one_round", [True, False])
def test_a_new_column_is_null_in_closed_versions_and_has_its_missing_value_in_open_ones(
    small: SmallLake, *, is_one_round: bool
) -> None:
    wider = make_relation(
        "t", "k int4, v text, big text, n int4", n={"missing_value": "7", "has_default": True}
    )
    rounds = 1000 if is_one_round else 1
    small.commit([insert(T, "1", "a", None), insert(T, "2", "a", None), insert(T, "3", "a", None)])
    small.commit([update(T, "1", "b", None)])
    # The column comes with this transaction, which also ends a version.
    small.commit([delete(T, "2", None, None), insert(wider, "4", "a", None, "1")])
    small.commit([update(wider, "3", "b", None, "2")])
    small.merge(round_rows=rounds)
    rows = open_history(small).orderBy("k", "_from_lsn").select("k", "v", "n").collect()
    assert [tuple(row) for row in rows] == [
        *((1, "a", None), (1, "b", 7), (2, "a", None), (3, "a", 7), (3, "b", 2), (4, "a", 1)),
    ]


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


def test_holes_are_filled_in_files_with_open_and_closed_versions(small: SmallLake) -> None:
    small.merge([update(T, "1", "a", None, unchanged=[2]), insert(T, "2", "a", None)])
    small.merge([update(T, "1", "b", None, unchanged=[2])])
    DeltaTable(small.lake.locate_target(VERSIONS).uri).optimize.compact()
    small.merge([read(T, "1", "b", "found")])
    assert [row[:4] for row in list_versions(small, "k", "v", "big", "_holes")] == [
        (1, "a", "found", None), (1, "b", "found", None), (2, "a", None, None),
    ]  # fmt: skip


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


def test_a_merge_that_died_after_it_added_columns_is_finished_by_the_next(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([insert(T, "1", "a", None), insert(T, "2", "a", None)])
    default = {"missing_value": "7", "has_default": True}
    wider = make_relation("t", "k int4, v text, big text, n int4")
    widest = make_relation("t", "k int4, v text, big text, n int4, m int4", m=default)

    def die(_: str) -> None:
        raise OSError("the disk is full")

    for changed in (update(wider, "1", "n", None, "1"), update(widest, "1", "m", None, "1", "7")):
        small.commit([changed])
        with monkeypatch.context() as patched:
            patched.setattr(history_merge, "reach", die)
            with pytest.raises(MergeError):
                small.merge()
        small.merge()
    rows = open_history(small).orderBy("k", "_from_lsn").select("k", "v", "n", "m").collect()
    assert [tuple(row) for row in rows] == [
        *((1, "a", None, None), (1, "n", 1, None), (1, "m", 1, 7), (2, "a", None, 7)),
    ]


def test_two_open_versions_of_a_key_become_one(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)])
    folder = small.lake.locate_target(VERSIONS)
    copied = DeltaTable(folder.uri).to_pyarrow_table()
    write_deltalake(folder.uri, copied, mode="append")
    small.merge([update(T, "1", "b", None)])
    open_ones = open_history(small).where("_is_current").select("k", "v").collect()
    assert [tuple(row) for row in open_ones] == [(1, "b")]
    assert open_history(small).where("_is_current = (_to_lsn is not null)").count() == 0


def backfill(small: SmallLake, *rows: tuple[Any, ...]) -> None:
    """Stage a whole backfill: the reads of a relation's rows, and its sweep."""
    (start,) = small.commit([mark(T)])
    small.commit([read(*row) for row in rows])
    small.commit([sweep(rows[0][0], start=start)])


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


@pytest.mark.parametrize("is_one_round", [True, False])
def test_a_version_that_is_filled_and_closed_in_one_round_is_there_once(
    small: SmallLake, *, is_one_round: bool
) -> None:
    small.commit([update(T, "1", "a", None, unchanged=[2])])
    small.commit([update(T, "1", "b", None, unchanged=[2])])
    small.merge()
    small.commit([update(T, "1", "c", None, unchanged=[2])])
    small.commit([read(T, "1", "c", "found")], [delete(T, "1", None, None)])
    small.merge(round_rows=100 if is_one_round else 1)
    assert [row[:3] for row in list_versions(small, "v", "big", "_closed_by")] == [
        ("a", "found", "update"), ("b", "found", "update"), ("c", "found", "delete"),
    ]  # fmt: skip


def test_a_first_merge_that_died_begins_again(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: str) -> None:
        raise OSError("the disk is full")

    wider = make_relation("t", "k int4, v text, big text, n int4")
    small.commit([insert(T, "1", "a", None)], [update(wider, "1", "b", None, "1")])
    with monkeypatch.context() as patched:
        patched.setattr(history_merge, "reach", die)
        with pytest.raises(MergeError):
            small.merge()
    small.merge()
    assert read_states(small.lake).get(NAME) is None or (
        read_states(small.lake)[NAME].state == "streaming"
    )
    assert [row[:2] for row in list_versions(small, "v", "n")] == [("a", None), ("b", 1)]


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


def test_a_wide_history_and_one_with_a_foreign_column_keep_closed_versions_apart(
    small: SmallLake,
) -> None:
    names = ", ".join(f"c{n} text" for n in range(40))
    wide = make_relation("t", f"k int4, {names}")
    small.merge([insert(wide, "1", *["a"] * 40)])
    small.merge([update(wide, "1", *["b"] * 40)])
    assert len(closed_files(small)) == 1
    folder = small.lake.locate_target(VERSIONS)
    DeltaTable(folder.uri).alter.add_columns([Field("note", PrimitiveType("string"))])
    small.merge([update(wide, "1", *["c"] * 40)])
    assert [row[0] for row in list_versions(small, "c39")] == ["a", "b", "c"]
    assert len(closed_files(small)) == 2


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


def test_a_history_whose_folder_is_gone_begins_again_with_the_log(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)], [update(T, "1", "b", None)])
    before = list_versions(small, "k", "v")
    small.lake.locate_target(VERSIONS).remove_folder()
    small.merge([insert(T, "2", "a", None)])
    assert list_versions(small, "k", "v")[:2] == before


def test_sql_reads_a_history_at_any_lsn(small: SmallLake) -> None:
    first, second = small.commit([insert(T, "1", "a", None)], [update(T, "1", "b", None)])
    small.merge()
    (third,) = small.commit([delete(T, "1", None, None)])
    query = "select v, _to_lsn from history.public.t order by _from_lsn"
    for lsn, expected in [
        (first, [("a", None)]),
        (second, [("a", second), ("b", None)]),
        (third, [("a", second), ("b", third)]),
    ]:
        answer = answer_query(small.spark, small.lake, query, Bound(1, Lsn(lsn)))
        assert [tuple(row) for row in answer.rows.collect()] == expected, lsn


def test_a_file_with_open_and_closed_versions_is_read_as_both(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None), insert(T, "2", "a", None)])
    small.merge([update(T, "1", "b", None)])
    folder = small.lake.locate_target(VERSIONS)
    DeltaTable(folder.uri).optimize.compact()
    small.merge([update(T, "1", "c", None), delete(T, "2", None, None)])
    assert [row[:2] + row[3:] for row in list_versions(small, "k", "v")] == [
        (1, "a", small.log.lsn - 16, "insert", "update"),
        (1, "b", small.log.lsn, "update", "update"),
        (1, "c", None, "update", None),
        (2, "a", small.log.lsn, "insert", "delete"),
    ]


def test_maintenance_keeps_open_and_closed_versions_in_files_of_their_own(small: SmallLake) -> None:
    small.merge([insert(T, "0", "a", None)])
    for number in range(12):
        small.merge([update(T, "0", str(number), None)])
    before = list_versions(small, "k", "v")
    assert len(closed_files(small)) == 12
    later = EPOCH_START + timedelta(days=300)
    answer = maintain(small.lake, keeping=Keeping(), now=later, tell=lambda _: None)
    assert answer.problems == ()
    assert NAME in answer.compacted
    assert len(closed_files(small)) == 1
    assert list_versions(small, "k", "v") == before
    small.merge([update(T, "0", "last", None)])
    assert list_versions(small, "v")[-1] == ("last", small.log.lsn, None, "update", None)
    assert len(closed_files(small)) == 2
