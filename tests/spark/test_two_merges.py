"""Two merges of one lake at once, each with a configuration folder of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import MergeError
from cdc_core.vocabulary import TableName
from spark_jobs.delta import direct_parquet
from spark_jobs.fast_path import arrow_copy, arrow_merge, unshared_reads
from spark_jobs.lake import locks
from spark_jobs.lake.lake import Lake
from spark_jobs.merge import merge
from spark_jobs.merge.rounds import merge_until
from tests.spark.relations import Entry, delete, insert, make_relation, read, update
from tests.spark.small_lake import SmallLake

T = make_relation("t", "k int4, v text")


@dataclass(frozen=True)
class Way:
    """A way in which a table is written: what is staged, and what is left of it."""

    changes: tuple[list[Entry], list[Entry]]
    small_bytes: int
    left: list[tuple[int, str]]
    refusal: str | None
    is_typed: bool = True


WAYS = {
    "added": Way(
        ([read(T, "11", "b"), read(T, "12", "b")], [read(T, "13", "c")]),
        0,
        [(1, "a"), (11, "b"), (12, "b"), (13, "c"), (2, "a")],
        # The other one has cleared away what it took for a dead process's.
        "FileNotFoundError",
    ),
    "added_by_spark": Way(
        ([read(T, "11", "b"), read(T, "12", "b")], [read(T, "13", "c")]),
        0,
        [(1, "a"), (11, "b"), (12, "b"), (13, "c"), (2, "a")],
        "CommitFailedError",
        is_typed=False,
    ),
    "merged": Way(
        ([update(T, "1", "b"), insert(T, "4", "b")], [update(T, "2", "c"), insert(T, "5", "c")]),
        0,
        [(1, "b"), (2, "c"), (4, "b"), (5, "c")],
        None,
    ),
    "rewritten": Way(
        ([update(T, "1", "b"), insert(T, "4", "b")], [update(T, "2", "c"), insert(T, "5", "c")]),
        merge.SMALL_TABLE_BYTES,
        [(1, "b"), (2, "c"), (4, "b"), (5, "c")],
        "CommitFailedError",
    ),
}


class Race:
    """A first merge, in the midst of which another one goes as far as it is let."""

    def __init__(self, small: SmallLake, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.other = Lake(small.lake.root, folder / "another_state")
        self.small, self.patch = small, patch
        self.errors: list[MergeError] = []

    def run(self) -> None:
        """Merge; just before the commit the other merge does one round of one transaction."""
        is_begun = False

        def interfere(point: str) -> None:
            nonlocal is_begun
            if point == "before_merge_commit" and not is_begun:
                is_begun = True
                self._keep_error(self._merge_first)

        with self.patch.context() as patch:
            patch.setattr(merge, "reach", interfere)
            self._keep_error(self.small.merge)
        assert is_begun

    def _merge_first(self) -> None:
        stop, spark = threading.Event(), self.small.spark.newSession()
        merge_until(spark, self.other, round_rows=1, stop=stop, on_round=lambda _: stop.set())

    def _keep_error(self, work: Callable[[], object]) -> None:
        try:
            work()
        except MergeError as error:
            self.errors.append(error)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    chosen = WAYS[request.param]
    monkeypatch.setattr(unshared_reads, "FEW_READS", 1)
    monkeypatch.setattr(arrow_merge, "_MOST_ENTRIES", 0)
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", chosen.small_bytes)
    if not chosen.is_typed:
        monkeypatch.setattr(arrow_copy, "_find_wanted", lambda *_: None)
    return chosen


@pytest.fixture
def race(way: Way, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Race:
    small = SmallLake(spark, tmp_path)
    small.merge([insert(T, str(k), "a") for k in (1, 2, 3)])
    small.merge([delete(T, "3")])
    for entries in way.changes:
        small.commit(entries)
    return Race(small, tmp_path, monkeypatch)


def test_two_merges_from_two_folders_go_one_after_the_other(
    way: Way, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_DEADLINE_S", 0.1)
    race.run()
    assert ["locked by another process" in error.message for error in race.errors] == [True]
    assert race.small.rows(T) == way.left


def test_two_merges_that_no_lock_keeps_apart_leave_each_row_once(
    way: Way, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lake, "lock_table", lambda *_, **__: nullcontext())
    race.run()
    said = [error.message.rpartition("public.t: ")[2] for error in race.errors]
    assert said == ([] if way.refusal is None else [way.refusal])
    race.small.merge()
    assert race.small.rows(T) == way.left


def test_a_table_whose_names_are_long_in_utf_8_is_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Quoted and encoded, both names together are longer than a file's name may be."""
    schema, name = "販売管理システム本番環境", "受注明細履歴テーブル二〇二六年分"
    small = SmallLake(spark, tmp_path)
    long = make_relation(f"{schema}.{name}", "k int4, v text")
    small.merge([insert(long, "1", "a")])
    assert small.rows(long) == [(1, "a")]


def test_each_of_two_tables_with_long_names_has_a_lock_of_its_own(tmp_path: Path) -> None:
    """PostgreSQL takes names of 63 bytes, of any character."""
    lake = Lake(tmp_path / "lake", tmp_path / "state")
    names = [str(TableName('"' * 63, '"' * 62 + end)) for end in "ab"]
    with lake.lock_table(names[0], jvm=None), lake.lock_table(names[1], jvm=None):
        held = [*(lake.root / "locks").iterdir()]
    assert len(held) == 2
    with lake.lock_table(names[0], jvm=None):
        assert [*(lake.root / "locks").iterdir()] == held


def test_an_attempt_takes_in_nothing_that_another_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows, folders = spark.range(3).coalesce(1), list[Path]()
    bring_in = direct_parquet._bring_in

    def interfere(folder: Path, path: Path) -> Any:
        folders.append(folder)
        if len(folders) == 1:
            assert len(direct_parquet.write_files(rows, tmp_path)) == 1
        return bring_in(folder, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_parquet, "_bring_in", interfere)
        assert len(direct_parquet.write_files(rows, tmp_path)) == 1
    assert len({*folders}) == 2
    assert len([*tmp_path.glob("*.parquet")]) == 2
    assert not [*tmp_path.glob("_*")]
