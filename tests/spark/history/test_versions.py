"""A history has each version of a row, with what opened and closed it, by end LSNs."""

from __future__ import annotations

import pytest

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.ledger import find_cut
from spark_jobs.query.sql import answer_query
from spark_jobs.target.result import WritePlan
from tests.spark.history.versions import (
    NAME,
    T,
    closed_files,
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
    truncate,
    update,
)
from tests.spark.small_lake import SmallLake


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
