"""Cases of the merge, each in a table of its own, all in one log that is merged once or twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.ledger import find_cut, read_states
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan
from tests.spark.relations import Entry, delete, insert, make_relation, truncate, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

LONG = "a long text"
WIDE_NUMBER = "9" * 30

# Its keys stand for cases: below 100 plain ones, then those of chains, swaps, holes, rebirths.
MAIN = make_relation("main", "k int4, v text, big text")
CHAIN, SWAP, HOLE, REBORN = range(100, 500, 100)
CUT = make_relation("cut", "k int4, v text")
FULL = make_relation("full", "k int4, v text, big text", identity="f")
TEXTS = make_relation('public."Odd table"', "k text, a.b text, naïve text", key="k")
TYPES = make_relation("types", "k bytea, b bool, v int4, n numeric, d date", key="k b")
WIDE_OLD = make_relation("wide", "k int4, v text")
WIDE = make_relation(
    "wide", "k int4, v text, plus int4", plus={"missing_value": "7", "has_default": True}
)
NULLS_OLD = make_relation("nulls", "k int4, big text")
NULLS = make_relation("nulls", "k int4, big text, plus int4")
GONE_OLD = make_relation("gone", "k int4, v text")
GONE = make_relation("gone", "k int4")
KEYLESS = make_relation("keyless", "a int4", key="", identity="f")
INDEXED = make_relation("indexed", "k int4, code text", key="code", identity="i")

FIRST: list[list[Entry]] = [
    [insert(MAIN, "1", "a", None), insert(MAIN, "2", "b", None), insert(MAIN, "3", "c", None)],
    [insert(MAIN, "101", "x", LONG), insert(MAIN, "105", "y", "short")],
    [insert(MAIN, "201", None, "one"), insert(MAIN, "202", None, "two")],
    [insert(MAIN, "401", None, LONG), insert(CUT, "1", "old"), insert(CUT, "2", "old")],
    [insert(FULL, "1", "x", LONG)],
    [
        insert(TYPES, "\\x00ff", "t", "1", "NaN", "infinity"),
        insert(TYPES, "\\x00ff", "f", "2", "1.5", "2024-01-01"),
        insert(TYPES, "\\x01", "t", "3", "NaN", None),
        insert(TYPES, "\\x02", "t", "4", WIDE_NUMBER, None),
    ],
    [insert(TEXTS, "é\n`'", "x", None), insert(TEXTS, "", "y", "z")],
    [insert(WIDE_OLD, "1", "a"), insert(WIDE_OLD, "2", "b")],
    [insert(NULLS_OLD, "1", LONG), insert(NULLS_OLD, "2", "b")],
    [insert(GONE_OLD, "1", "a"), insert(KEYLESS, "1"), insert(MAIN, "9", "z", None)],
]
SECOND: list[list[Entry]] = [
    [
        update(MAIN, "1", "A", None),
        delete(MAIN, "2", None, None),
        insert(MAIN, "2", "again", None),
        delete(MAIN, "3", None, None),
    ],
    # 101 -> 102 -> 103 with the long value never sent, 105 -> 101 behind it.
    [
        update(MAIN, "102", "x", None, old=["101", None, None], unchanged=[2]),
        update(MAIN, "103", "z", None, old=["102", None, None], unchanged=[2]),
        update(MAIN, "101", "y", "short", old=["105", None, None]),
    ],
    [
        update(MAIN, "200", None, None, old=["201", None, None], unchanged=[2]),
        update(MAIN, "201", None, None, old=["202", None, None], unchanged=[2]),
        update(MAIN, "202", None, None, old=["200", None, None], unchanged=[2]),
    ],
    [update(MAIN, "301", "5", None, unchanged=[2]), update(MAIN, "302", "6", "known")],
    [update(MAIN, "303", "7", None, unchanged=[2])],
    [
        delete(MAIN, "401", None, None),
        insert(MAIN, "401", None, "new"),
        insert(MAIN, "407", None, "brief"),
        delete(MAIN, "407", None, None),
    ],
    [insert(CUT, "3", "before"), truncate(CUT), insert(CUT, "1", "new")],
    [update(FULL, "1", "y", None, old=["1", "x", LONG], unchanged=[2])],
    [
        update(TYPES, "\\x00ff", "t", "1", "2.5", "infinity"),
        update(TYPES, "\\x00ff", "f", "3", "1.5", "2024-01-01"),
        update(TYPES, "\\x01", "t", "30", None, None, unchanged=[3]),
        update(
            TYPES,
            "\\x03",
            "t",
            "40",
            None,
            None,
            old=["\\x02", "t", None, None, None],
            unchanged=[3],
        ),
    ],
    [delete(TEXTS, "", None, None), insert(INDEXED, "1", "c1"), insert(INDEXED, "2", "c2")],
    [update(WIDE_OLD, "2", "c"), insert(WIDE, "3", "d", None)],
    [update(NULLS, "1", None, "4", unchanged=[1]), insert(NULLS, "3", "n", None)],
    [update(GONE_OLD, "1", "b")],
    [insert(GONE, "2"), insert(MAIN, "10", "same transaction", None)],
]
# Rows, and of them inserted, updated, deleted.
COUNTS = {
    "public.main": (12, 5, 6, 2),
    "public.cut": (1, 1, 0, 2),
    "public.full": (1, 0, 1, 0),
    "public.types": (4, 1, 3, 1),
    'public."Odd table"': (1, 0, 0, 1),
    "public.wide": (3, 1, 1, 0),
    "public.nulls": (3, 1, 1, 0),
    "public.gone": (1, 0, 1, 0),
    "public.indexed": (2, 2, 0, 0),
}


class Cases(SmallLake):
    """The lake of the cases, merged twice, and what the second merge did."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        # By other limits, tables as small as these would be written whole.
        self.merge(*FIRST, limits=MERGE_ONLY)
        (self.second,) = self.merge(*SECOND, limits=MERGE_ONLY)
        columns = ("k", "v", "big", "_holes", "_epoch", "_commit_lsn", "_seq")
        self.main = self.rows(MAIN, *columns)

    def case(self, first_key: int) -> list[tuple[Any, ...]]:
        """The rows of a case: number in it, the two values, holes."""
        rows = [row for row in self.main if first_key <= row[0] < first_key + 100]
        return sorted((row[0] - first_key, *row[1:4]) for row in rows)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(spark, tmp_path_factory.mktemp("cases"))


def test_changes_of_rows_leave_one_row_a_key(lake: Cases) -> None:
    rows = [(1, "A"), (2, "again"), (9, "z"), (10, "same transaction")]
    assert [row[:2] for row in lake.case(0)] == rows


def test_a_merge_tells_the_rows_it_inserted_updated_and_deleted(lake: Cases) -> None:
    told = {
        table: (merged.rows, merged.inserted, merged.updated, merged.deleted)
        for table, merged in lake.second.tables.items()
    }
    assert told == COUNTS
    assert len(lake.main) == COUNTS["public.main"][0]
    ways = {table: merged.way for table, merged in lake.second.tables.items()}
    # A TRUNCATE, a new table, and a value for the rows before a new column.
    whole = ("public.cut", "public.indexed", "public.wide")
    assert ways == dict.fromkeys(COUNTS, WritePlan.MERGE) | dict.fromkeys(whole, WritePlan.REWRITE)


def test_a_row_carries_its_position_and_commit_time(lake: Cases) -> None:
    row = next(row for row in lake.main if row[0] == 2)
    assert row[4:] == (1, 16 + len(FIRST) * 16 + 8, 2)


def test_an_unsent_value_is_found_along_a_chain_of_keys(lake: Cases) -> None:
    assert lake.case(CHAIN) == [(1, "y", "short", None), (3, "z", LONG, None)]


def test_an_unsent_value_is_found_through_a_swap_of_keys(lake: Cases) -> None:
    assert lake.case(SWAP) == [(1, None, "two", None), (2, None, "one", None)]


def test_a_value_never_sent_is_named_a_hole(lake: Cases) -> None:
    holes = [(1, "5", None, ["big"]), (2, "6", "known", None), (3, "7", None, ["big"])]
    assert lake.case(HOLE) == holes


def test_a_key_made_again_has_nothing_of_its_former_row(lake: Cases) -> None:
    assert lake.case(REBORN) == [(1, None, "new", None)]


def test_a_truncate_cuts_off_what_is_older_in_one_commit(lake: Cases) -> None:
    assert lake.rows(CUT) == [(1, "new")]
    assert lake.version(CUT) == 2, "made, merged, merged"


def test_replica_identity_full_brings_the_unsent_value_itself(lake: Cases) -> None:
    assert lake.rows(FULL, "k", "v", "big", "_holes") == [(1, "y", LONG, None)]


def test_a_key_of_several_columns_identifies_by_all_of_them_and_raw_text_stands_whole(
    lake: Cases,
) -> None:
    key = bytearray(b"\0\xff")
    assert lake.rows(TYPES, "k", "b", "v", "n", "d", "_raw") == [
        (key, False, 3, Decimal("1.5"), date(2024, 1, 1), None),
        (key, True, 1, Decimal("2.5"), None, {"d": "infinity"}),
        # Raw text is carried with a value that was not sent, from one key to another too.
        (bytearray(b"\1"), True, 30, None, None, {"n": "NaN"}),
        (bytearray(b"\3"), True, 40, None, None, {"n": WIDE_NUMBER}),
    ]


def test_names_that_delta_refuses_are_spelt_in_bytes(lake: Cases) -> None:
    assert lake.rows(TEXTS, "k", "a~2Eb", "na~C3~AFve") == [("é\n`'", "x", None)]
    assert lake.lake.locate(TEXTS.table).name == "Odd~20table"


def test_rows_older_than_a_new_column_get_its_missing_value(lake: Cases) -> None:
    assert lake.rows(WIDE) == [(1, "a", 7), (2, "c", 7), (3, "d", None)]


def test_a_new_column_without_a_default_is_null_in_older_rows(lake: Cases) -> None:
    rows = [(1, LONG, 4), (2, "b", None), (3, "n", None)]
    assert lake.rows(NULLS) == rows


def test_any_other_change_of_shape_halts_the_table_before_its_transaction(lake: Cases) -> None:
    assert lake.rows(GONE_OLD) == [(1, "b")]
    state = read_states(lake.lake)["public.gone"]
    assert (state.state, state.reason) == ("halted", "column v was dropped")
    assert state.since_lsn == Lsn(lake.log.lsn - 8)


def test_a_table_without_a_key_halts_and_the_others_go_on(lake: Cases) -> None:
    assert read_states(lake.lake)["public.keyless"].state == "halted"
    assert read_states(lake.lake)["public.main"].state == "streaming"
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.halted == ("public.gone", "public.keyless")


def test_rows_known_by_another_index_than_the_primary_key_are_known_by_it() -> None:
    columns = (
        replace(INDEXED.columns[0], key_ordinal=1),
        replace(INDEXED.columns[1], key_ordinal=None),
    )
    assert replace(INDEXED, columns=columns).key == (1,)


def test_holes_stay_until_a_change_brings_the_value_and_halts_wherever_rounds_end(
    lake: Cases,
) -> None:
    states, cut = read_states(lake.lake), find_cut(lake.lake)
    assert cut is not None
    moved = update(MAIN, "304", "9", None, old=["303", None, None], unchanged=[2])
    lake.merge([update(MAIN, "301", "8", None, unchanged=[2]), moved])
    holes = [row for row in lake.rows(MAIN, "k", "v", "_holes") if row[2]]
    assert holes == [(301, "8", ["big"]), (304, "9", ["big"])]
    lake.merge([update(MAIN, "304", "9", "found")])
    rows = lake.rows(MAIN, "k", "big", "_holes")
    assert [row for row in rows if row[0] in {301, 304}] == [
        (301, None, ["big"]),
        (304, "found", None),
    ]
    again = find_cut(lake.lake)
    assert again is not None
    assert again.bound > cut.bound
    assert {t: again.merged[t] for t in again.halted} == {t: cut.merged[t] for t in cut.halted}
    assert {t: s for t, s in read_states(lake.lake).items() if s.state == "halted"} == {
        t: s for t, s in states.items() if s.state == "halted"
    }


def test_a_limited_merge_leaves_other_tables_where_they_were(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, other = make_relation("one", "k int4"), make_relation("other", "k int4")
    small = SmallLake(spark, tmp_path)
    end = small.commit([insert(one, "1"), insert(other, "1")])[0]
    small.merge(tables=["public.one"])
    assert small.rows(one) == [(1,)]
    assert small.plain(small.at(other, end).rows, other) == [(1,)]
    small.merge([insert(one, "2")], tables=["public.one"])
    assert [list(done.tables) for done in small.merge()] == [["public.other"]]
    assert small.rows(other) == [(1,)]
    assert small.merge() == []


@pytest.mark.parametrize(
    ("limits", "way"),
    [(MERGE_ONLY, WritePlan.MERGE), (SPARK_ONLY, WritePlan.REWRITE)],
    ids=["merged", "written_whole"],
)
def test_a_table_gets_its_first_column_of_a_type_that_delta_must_be_told_of(
    spark: SparkSession, tmp_path: Path, limits: MergeLimits, way: WritePlan
) -> None:
    small = SmallLake(spark, tmp_path, limits=limits)
    timed = make_relation("t", "k int4, at timestamp")
    small.merge([insert(make_relation("t", "k int4"), "1")])
    (done,) = small.merge([insert(timed, "2", "2026-11-22 01:02:03")])
    assert done.tables["public.t"].way is way
    assert small.rows(timed) == [(1, None), (2, datetime(2026, 11, 22, 1, 2, 3))]  # noqa: DTZ001 - of no zone.
