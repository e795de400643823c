"""Cases of the merge, each in a table of its own, all in one log that is merged once or twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Lsn
from spark_jobs import merge
from spark_jobs.ledger import find_cut, read_states
from tests.spark.relations import delete, insert, make_relation, truncate, update
from tests.spark.small_lake import SmallLake

LONG = "a long text"

PLAIN = make_relation("plain", "k int4, v text")
CHAIN = make_relation("chain", "k int4, v text, big text")
SWAP = make_relation("swap", "k int4, big text")
HOLES = make_relation("holes", "k int4, n int4, big text")
REBORN = make_relation("reborn", "k int4, big text")
CUT = make_relation("cut", "k int4, v text")
FULL = make_relation("full", "k int4, v text, big text", identity="f")
RAW = make_relation("raw", "k int4, n numeric, d date")
TEXTS = make_relation('public."Odd table"', "k text, a.b text, naïve text", key="k")
BYTES = make_relation("bytes", "k bytea, b bool, v int4", key="k b")
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


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "SMALL_TABLE_BYTES", 0)
        return merge_cases(SmallLake(spark, tmp_path_factory.mktemp("cases")))


def merge_cases(small: SmallLake) -> SmallLake:
    small.merge(
        [insert(PLAIN, "1", "a"), insert(PLAIN, "2", "b"), insert(PLAIN, "3", "c")],
        [insert(CHAIN, "1", "x", LONG), insert(CHAIN, "5", "y", "short")],
        [insert(SWAP, "1", "one"), insert(SWAP, "2", "two")],
        [insert(REBORN, "1", LONG), insert(CUT, "1", "old"), insert(CUT, "2", "old")],
        [insert(FULL, "1", "x", LONG)],
        [insert(RAW, "1", "NaN", "infinity"), insert(RAW, "2", "1.5", "2024-01-01")],
        [insert(TEXTS, "é\n`'", "x", None), insert(TEXTS, "", "y", "z")],
        [insert(BYTES, "\\x00ff", "t", "1"), insert(BYTES, "\\x00ff", "f", "2")],
        [insert(WIDE_OLD, "1", "a"), insert(WIDE_OLD, "2", "b")],
        [insert(NULLS_OLD, "1", LONG), insert(NULLS_OLD, "2", "b")],
        [insert(GONE_OLD, "1", "a"), insert(KEYLESS, "1"), insert(PLAIN, "9", "z")],
    )
    small.merge(
        [update(PLAIN, "1", "A"), delete(PLAIN, "2", None), insert(PLAIN, "2", "again")],
        [delete(PLAIN, "3", None)],
        # 1 -> 2 -> 3 with the long value never sent, 5 -> 1 behind it.
        [
            update(CHAIN, "2", "x", None, old=["1", None, None], unchanged=[2]),
            update(CHAIN, "3", "z", None, old=["2", None, None], unchanged=[2]),
            update(CHAIN, "1", "y", "short", old=["5", None, None]),
        ],
        [
            update(SWAP, "0", None, old=["1", None], unchanged=[1]),
            update(SWAP, "1", None, old=["2", None], unchanged=[1]),
            update(SWAP, "2", None, old=["0", None], unchanged=[1]),
        ],
        [update(HOLES, "1", "5", None, unchanged=[2]), update(HOLES, "2", "6", "known")],
        [
            delete(REBORN, "1", None),
            insert(REBORN, "1", "new"),
            insert(REBORN, "7", "brief"),
            delete(REBORN, "7", None),
        ],
        [insert(CUT, "3", "before"), truncate(CUT), insert(CUT, "1", "new")],
        [update(FULL, "1", "y", None, old=["1", "x", LONG], unchanged=[2])],
        [update(RAW, "1", "2.5", "infinity")],
        [delete(TEXTS, "", None, None), insert(INDEXED, "1", "c1"), insert(INDEXED, "2", "c2")],
        [update(BYTES, "\\x00ff", "f", "3")],
        [update(WIDE_OLD, "2", "c"), insert(WIDE, "3", "d", None)],
        [update(NULLS, "1", None, "4", unchanged=[1]), insert(NULLS, "3", "n", None)],
        [update(GONE_OLD, "1", "b")],
        [insert(GONE, "2"), insert(PLAIN, "10", "same transaction")],
    )
    return small


def test_changes_of_rows_leave_one_row_a_key(lake: SmallLake) -> None:
    rows = [(1, "A"), (2, "again"), (9, "z"), (10, "same transaction")]
    assert lake.rows(PLAIN) == sorted(rows, key=repr)


def test_a_row_carries_its_position_and_commit_time(lake: SmallLake) -> None:
    found = lake.rows(PLAIN, "k", "_epoch", "_commit_lsn", "_seq", "_committed_at")
    row = next(row for row in found if row[0] == 2)
    assert row[1:4] == (1, 16 + 11 * 16 + 8, 2)


def test_an_unsent_value_is_found_along_a_chain_of_keys(lake: SmallLake) -> None:
    assert lake.rows(CHAIN) == [(1, "y", "short"), (3, "z", LONG)]


def test_an_unsent_value_is_found_through_a_swap_of_keys(lake: SmallLake) -> None:
    assert lake.rows(SWAP) == [(1, "two"), (2, "one")]


def test_a_value_never_sent_is_named_a_hole(lake: SmallLake) -> None:
    assert lake.rows(HOLES, "k", "n", "big", "_holes") == [
        (1, 5, None, ["big"]),
        (2, 6, "known", None),
    ]


def test_a_key_made_again_has_nothing_of_its_former_row(lake: SmallLake) -> None:
    assert lake.rows(REBORN, "k", "big", "_holes") == [(1, "new", None)]


def test_a_truncate_cuts_off_what_is_older_in_one_commit(lake: SmallLake) -> None:
    assert lake.rows(CUT) == [(1, "new")]
    assert lake.version(CUT) == 2, "made, merged, merged"


def test_replica_identity_full_brings_the_unsent_value_itself(lake: SmallLake) -> None:
    assert lake.rows(FULL, "k", "v", "big", "_holes") == [(1, "y", LONG, None)]


def test_what_a_type_cannot_hold_stands_whole_in_raw(lake: SmallLake) -> None:
    assert lake.rows(RAW, "k", "n", "d", "_raw") == [
        (1, Decimal("2.5"), None, {"d": "infinity"}),
        (2, Decimal("1.5"), date(2024, 1, 1), None),
    ]


def test_names_that_delta_refuses_are_spelt_in_bytes(lake: SmallLake) -> None:
    assert lake.rows(TEXTS, "k", "a~2Eb", "na~C3~AFve") == [("é\n`'", "x", None)]
    assert lake.lake.locate(TEXTS.table).name == "Odd~20table"


def test_a_key_of_several_columns_identifies_by_all_of_them(lake: SmallLake) -> None:
    rows = [(bytearray(b"\0\xff"), False, 3), (bytearray(b"\0\xff"), True, 1)]
    assert lake.rows(BYTES) == rows


def test_rows_older_than_a_new_column_get_its_missing_value(lake: SmallLake) -> None:
    assert lake.rows(WIDE) == [(1, "a", 7), (2, "c", 7), (3, "d", None)]


def test_a_new_column_without_a_default_is_null_in_older_rows(lake: SmallLake) -> None:
    rows = [(1, LONG, 4), (2, "b", None), (3, "n", None)]
    assert lake.rows(NULLS) == rows


def test_any_other_change_of_shape_halts_the_table_before_its_transaction(lake: SmallLake) -> None:
    assert lake.rows(GONE_OLD) == [(1, "b")]
    state = read_states(lake.lake)["public.gone"]
    assert (state.state, state.reason) == ("halted", "column v was dropped")
    assert state.since_lsn == Lsn(lake.log.lsn - 8)


def test_a_table_without_a_key_halts_and_the_others_go_on(lake: SmallLake) -> None:
    assert read_states(lake.lake)["public.keyless"].state == "halted"
    assert read_states(lake.lake)["public.plain"].state == "streaming"
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.halted == ("public.gone", "public.keyless")


def test_rows_known_by_another_index_than_the_primary_key_are_known_by_it() -> None:
    columns = (
        replace(INDEXED.columns[0], key_ordinal=1),
        replace(INDEXED.columns[1], key_ordinal=None),
    )
    assert replace(INDEXED, columns=columns).key == (1,)


def test_a_halt_is_the_same_wherever_rounds_end(lake: SmallLake) -> None:
    states, cut = read_states(lake.lake), find_cut(lake.lake)
    assert cut is not None
    lake.merge([insert(PLAIN, "11", "later")])
    again = find_cut(lake.lake)
    assert again is not None
    assert again.bound > cut.bound
    assert {t: again.merged[t] for t in again.halted} == {t: cut.merged[t] for t in cut.halted}
    assert {t: s for t, s in read_states(lake.lake).items() if s.state == "halted"} == {
        t: s for t, s in states.items() if s.state == "halted"
    }


def test_a_hole_stays_until_a_change_brings_the_value(lake: SmallLake) -> None:
    lake.merge([update(HOLES, "1", "7", None, unchanged=[2])])
    assert lake.rows(HOLES, "k", "n", "_holes")[0] == (1, 7, ["big"])
    moved = update(HOLES, "3", "8", None, old=["1", None, None], unchanged=[2])
    lake.merge([moved])
    assert lake.rows(HOLES, "k", "n", "_holes")[1] == (3, 8, ["big"])
    lake.merge([update(HOLES, "3", "8", "found")])
    assert lake.rows(HOLES, "k", "big", "_holes")[1] == (3, "found", None)


def test_raw_text_is_carried_with_a_value_that_was_not_sent(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_relation("t", "k int4, n numeric, v text")
    small = SmallLake(spark, tmp_path)
    small.merge([insert(table, "1", "NaN", "a"), insert(table, "2", "9" * 30, "b")])
    small.merge(
        [
            update(table, "1", None, "c", unchanged=[1]),
            update(table, "3", None, "d", old=["2", None, None], unchanged=[1]),
        ]
    )
    assert small.rows(table, "k", "v", "_raw") == [
        (1, "c", {"n": "NaN"}),
        (3, "d", {"n": "9" * 30}),
    ]


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
