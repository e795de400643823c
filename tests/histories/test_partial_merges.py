"""Histories in which tables come to different bounds: partial merges, failures, runs that died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from cdc_core.errors import MergeError
from cdc_core.vocabulary import Lsn, Relation
from spark_jobs.lake.lake import Bound, find_bound, open_table
from spark_jobs.lake.ledger import find_cut
from spark_jobs.merge import rounds, targets
from spark_jobs.merge.merge import TableMerge
from spark_jobs.query.sql import answer_query
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from tests.spark.relations import insert, make_relation
from tests.spark.small_lake import SPARK_ONLY, SmallLake

ONE, TWO = make_relation("one", "k int4"), make_relation("two", "k int4")


class _Died(Exception):
    """The run was killed."""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SmallLake:
    return SmallLake(spark, tmp_path)


def read_by_sql(lake: SmallLake, table: Relation) -> list[int]:
    """The keys of a table at the newest cut, by `walgate sql`; it is neither halted nor partial."""
    cut = find_cut(lake.lake)
    assert cut is not None
    answer = answer_query(lake.spark, lake.lake, f"select k from {table.table}", cut.bound)
    assert not answer.halted
    return sorted(row.k for row in answer.rows.collect())


def die_before_the_cut(lake: SmallLake, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Merge, and die when the tables are committed and the cut is not written."""

    def die(point: str) -> None:
        if point == "before_cut":
            raise _Died

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "reach", die)
        with pytest.raises(_Died):
            lake.merge(**options)


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_a_table_left_out_of_a_merge_reads_at_the_newest_cut_like_all_others(
    lake: SmallLake, *, is_first: bool
) -> None:
    before = [] if is_first else [1]
    if not is_first:
        lake.merge([insert(ONE, "1"), insert(TWO, "1")])
    lake.merge([insert(ONE, "2"), insert(TWO, "2")], tables=["public.one"])
    assert read_by_sql(lake, ONE) == read_by_sql(lake, TWO) == [*before, 2]
    lake.merge([insert(ONE, "3")], tables=["public.one"])
    assert read_by_sql(lake, TWO) == [*before, 2]
    lake.merge()
    assert lake.rows(TWO) == [(k,) for k in [*before, 2]]


@pytest.mark.parametrize(
    ("limits", "writer"),
    [(DEFAULT_LIMITS, "merge_rewritten"), (SPARK_ONLY, "merge_by_spark")],
    ids=["by_arrow", "by_spark"],
)
def test_a_table_that_a_merge_failed_at_reads_at_the_newest_cut_like_all_others(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, limits: MergeLimits, writer: str
) -> None:
    lake.limits = limits
    lake.merge([insert(ONE, "1"), insert(TWO, "1")])
    write = getattr(targets, writer)

    def fail_at_two(merge: TableMerge, *arguments: Any, **options: Any) -> Any:
        if merge.plan.table == TWO.table:
            raise DeltaError("the disk is full")
        return write(merge, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(targets, writer, fail_at_two)
        with pytest.raises(MergeError, match=r"public\.two"):
            lake.merge([insert(ONE, "2"), insert(TWO, "2")])
    assert lake.rows(TWO) == [(1,)]
    assert read_by_sql(lake, ONE) == read_by_sql(lake, TWO) == [1, 2]


def test_a_cut_names_no_version_above_itself_after_a_longer_round_died(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.merge([insert(ONE, "1"), insert(TWO, "1")])
    ends = [lake.commit([insert(ONE, str(k)), insert(TWO, str(k))])[0] for k in (2, 3, 4)]
    die_before_the_cut(lake, monkeypatch, tables=["public.one"])
    assert lake.rows(ONE) == [(1,), (2,), (3,), (4,)]
    assert lake.rows(TWO) == [(1,)]
    found: list[tuple[Bound, list[Any], list[Any]]] = []

    def look(done: rounds.Round) -> None:
        cut = find_cut(lake.lake)
        assert cut is not None
        found.append((done.cut, read_by_sql(lake, ONE), read_by_sql(lake, TWO)))
        for table, bound in cut.merged.items():
            assert bound <= cut.bound, table

    lake.merge(round_rows=1, on_round=look)
    assert found == [
        (Bound(1, Lsn(end)), keys, keys)
        for end, keys in zip(ends, ([1, 2], [1, 2, 3], [1, 2, 3, 4]), strict=True)
    ]


def test_a_table_that_a_dead_run_made_is_named_once_a_cut_reaches_it(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [lake.commit([insert(ONE, str(k))])[0] for k in (1, 2)]
    die_before_the_cut(lake, monkeypatch)
    (first, second) = lake.merge(round_rows=1)
    assert [first.cut.lsn, second.cut.lsn] == ends
    cut = find_cut(lake.lake)
    assert cut is not None
    delta = open_table(lake.lake.locate(ONE.table))
    assert delta is not None
    assert cut.versions == {"public.one": delta.version()}
    assert find_bound(delta, lake.lake.read_epochs()) == cut.bound
    assert lake.plain(lake.at(ONE, ends[0]).rows, ONE) == [(1,)]
    assert read_by_sql(lake, ONE) == [1, 2]
