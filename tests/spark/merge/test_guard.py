"""A MERGE into a table that others have written to: a key is there twice, a row is newer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import MergeError
from spark_jobs.lake.ledger import find_cut, queue_tables, read_requests
from spark_jobs.merge import merge_by_key
from spark_jobs.merge.guard import find_damage
from spark_jobs.target.result import WritePlan
from tests.spark.relations import Entry, insert, make_relation, read, sweep, update
from tests.spark.small_lake import MERGE_ONLY, SmallLake

T = make_relation("t", "k int4, v text")
REREAD = [read(T, "2", "b")]
WHOLE = [*(read(T, k, "b") for k in "123")]


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a table of three rows that is merged into."""
    made = SmallLake(spark, tmp_path, limits=MERGE_ONLY)
    made.merge([insert(T, k, "a") for k in "123"])
    return made


def run(small: SmallLake, statement: str) -> None:
    small.spark.sql(statement.format(f"delta.`{small.lake.locate(T.table)}`"))


def check_rebuilt(small: SmallLake, rows: list[tuple[int, str]]) -> None:
    """The rows are there once, the newest cut names their version, and a backfill is asked for."""
    assert small.rows(T) == rows
    cut = find_cut(small.lake)
    assert cut is not None
    assert cut.versions["public.t"] == small.version(T)
    (request,) = read_requests(small.lake)
    assert request.table == "public.t"
    assert request.since == cut.bound
    assert cut.partial == ("public.t",)


@pytest.mark.parametrize("entries", [[update(T, "2", "b")], REREAD], ids=["changed", "read again"])
def test_a_key_that_is_there_twice_is_there_once_after_a_merge_that_meets_it(
    small: SmallLake, entries: list[Entry]
) -> None:
    run(small, "insert into {0} by name select * from {0} where k = 2")
    assert small.rows(T) == [(1, "a"), (2, "a"), (2, "a"), (3, "a")]
    small.merge(entries)
    check_rebuilt(small, [(1, "a"), (2, "b"), (3, "a")])
    small.merge([update(T, "2", "c")])
    assert small.rows(T) == [(1, "a"), (2, "c"), (3, "a")]
    assert len(read_requests(small.lake)) == 1


def test_a_whole_backfill_leaves_each_key_once(small: SmallLake) -> None:
    run(small, "insert into {0} by name select * from {0} where k > 1")
    (start,) = small.commit([])
    small.merge(WHOLE, [sweep(T, start=start)])
    check_rebuilt(small, [(1, "b"), (2, "b"), (3, "b")])


def test_a_row_is_not_replaced_by_an_older_change(small: SmallLake) -> None:
    run(small, "update {} set v = 'new', _commit_lsn = 1000000 where k = 2")
    small.merge([update(T, "1", "b"), update(T, "2", "old"), insert(T, "4", "b")])
    check_rebuilt(small, [(1, "b"), (2, "new"), (3, "a"), (4, "b")])


def test_a_row_without_a_position_is_replaced_by_any_change(small: SmallLake) -> None:
    run(small, "update {} set _epoch = null, _commit_lsn = null, _seq = null where k = 2")
    (done,) = small.merge([update(T, "2", "b")])
    assert done.tables["public.t"].way is WritePlan.MERGE
    assert small.rows(T) == [(1, "a"), (2, "b"), (3, "a")]
    assert not read_requests(small.lake)


def test_what_others_committed_after_the_merge_is_not_overwritten(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge was paused between its MERGE and the rewrite, and has lost its lock."""
    run(small, "insert into {0} by name select * from {0} where k = 2")

    def queue_and_sleep(*arguments: Any, **named: Any) -> None:
        queue_tables(*arguments, **named)
        run(small, "update {} set v = 'others' where k = 3")

    monkeypatch.setattr(merge_by_key, "queue_tables", queue_and_sleep)
    with pytest.raises(MergeError, match="could not be merged"):
        small.merge([update(T, "2", "b")])
    assert (3, "others") in small.rows(T)


@pytest.mark.parametrize(
    ("inserted", "updated", "cause"),
    [(1, 2, None), (0, 2, "newer positions"), (2, 2, "several rows with the same key")],
)
def test_the_counts_of_a_merge_show_what_is_wrong(
    inserted: int, updated: int, cause: str | None
) -> None:
    found = find_damage(arrived=3, inserted=inserted, updated=updated)
    assert (found is None) if cause is None else (found is not None and cause in found)
