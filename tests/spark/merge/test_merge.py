"""What a merge does with tables that it cannot follow, and with a choice of tables.

What a merge makes of each kind of change is in `tests/transcripts`.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.ledger import StateRecord, find_cut, read_states
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan
from tests.spark.relations import insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

PET = make_relation("pet", "id int4, name text", key="id")
PET_WITHOUT_NAME = make_relation("pet", "id int4", key="id")
NOTE_WITHOUT_KEY = make_relation("note", "words text", key="", identity="f")
PAGE = make_relation("page", "id int4, title text, body text", key="id", identity="f")
VISIT = make_relation("visit", "id int4", key="id")


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    """Lend a lake of four tables, of which the last merge halted two."""
    lake = SmallLake(spark, tmp_path_factory.mktemp("halts"))
    lake.merge(
        [insert(PET, "1", "Ada"), insert(NOTE_WITHOUT_KEY, "hello")],
        [insert(VISIT, "1"), insert(PAGE, "1", "one", "long")],
    )
    lake.merge(
        [update(PET, "1", "Adele")],
        [update(PAGE, "1", "changed", None, old=["1", "one", "long"], unchanged=[2])],
        [insert(PET_WITHOUT_NAME, "2"), insert(VISIT, "2")],
        limits=MERGE_ONLY,
    )
    return lake


def find_halted(lake: SmallLake) -> dict[str, StateRecord]:
    return {name: one for name, one in read_states(lake.lake).items() if one.state == "halted"}


def test_any_other_change_of_shape_halts_the_table_before_its_transaction(lake: SmallLake) -> None:
    assert lake.rows(PET) == [(1, "Adele")]
    halt = find_halted(lake)["public.pet"]
    assert (halt.reason, halt.since_lsn) == ("column name was dropped", Lsn(lake.log.lsn - 8))


def test_a_table_without_a_key_halts_and_the_others_go_on(lake: SmallLake) -> None:
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.halted == ("public.note", "public.pet")
    assert read_states(lake.lake)["public.visit"].state == "streaming"
    assert lake.rows(VISIT) == [(1,), (2,)]


def test_halts_stay_wherever_later_rounds_end(lake: SmallLake) -> None:
    halted, cut = find_halted(lake), find_cut(lake.lake)
    assert cut is not None
    lake.merge([insert(VISIT, "3")])
    lake.merge([insert(VISIT, "4")])
    later = find_cut(lake.lake)
    assert later is not None
    assert later.bound > cut.bound
    for table in halted:
        assert later.merged[table] == cut.merged[table]
    assert find_halted(lake) == halted


def test_a_value_that_was_not_sent_is_taken_from_a_whole_old_row(lake: SmallLake) -> None:
    # Capture fills in such a value by itself. The fold does not rely on it.
    assert lake.rows(PAGE, "id", "title", "body", "_holes") == [(1, "changed", "long", None)]


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
