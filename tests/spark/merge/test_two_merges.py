"""Two merges of one lake at once, each with a configuration folder of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import MergeError
from cdc_core.lake_storage import lock_wait
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.table_states import TableState
from cdc_core.vocabulary import TableName
from spark_jobs.delta import committer
from spark_jobs.delta.attempts import attempting
from spark_jobs.delta.direct_parquet import write_files
from spark_jobs.fast_path import arrow_copy
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import read_states
from spark_jobs.merge import merge, rounds
from spark_jobs.merge.round_start import RoundStart
from spark_jobs.merge.rounds import Round, merge_until
from spark_jobs.session.failures import Failures
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import locate_lake, path_of
from tests.spark.relations import Entry, delete, insert, make_relation, mark, read, sweep, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

T = make_relation("t", "k int4, v text")
# v was dropped and added again.
AGAIN = make_relation("t", "k int4, v text", v={"attnum": 3})


@dataclass(frozen=True)
class Way:
    """A way in which a table is written: what is staged, by which limits, and what is left of it.

    `refusal` is the error of the first merge if no lock keeps the other one out.
    """

    plan: WritePlan
    changes: tuple[list[Entry], list[Entry]]
    limits: MergeLimits
    left: list[tuple[int, str]]
    refusal: str
    is_typed: bool = True


ADDED = replace(MERGE_ONLY, unshared_reads=1)
# The table is merged, and the other merge has written a newer cut.
OVERTAKEN = "another process has merged this lake since the round began"
# The other merge has removed the attempt, which it took for a dead process's.
ATTEMPT_GONE = "FileNotFoundError"
READS = ([read(T, "11", "b"), read(T, "12", "b")], [read(T, "13", "c")])
CHANGES = (
    [update(T, "1", "b"), insert(T, "4", "b")],
    [update(T, "2", "c"), insert(T, "5", "c")],
)
WITH_READS = [(1, "a"), (11, "b"), (12, "b"), (13, "c"), (2, "a")]
CHANGED = [(1, "b"), (2, "c"), (4, "b"), (5, "c")]
WAYS = {
    "added": Way(WritePlan.APPEND, READS, ADDED, WITH_READS, ATTEMPT_GONE),
    "added_by_spark": Way(WritePlan.APPEND, READS, ADDED, WITH_READS, ATTEMPT_GONE, is_typed=False),
    "merged": Way(WritePlan.MERGE, CHANGES, MERGE_ONLY, CHANGED, OVERTAKEN),
    "rewritten": Way(WritePlan.REWRITE, CHANGES, SPARK_ONLY, CHANGED, "CommitFailedError"),
    "rewritten_by_arrow": Way(
        WritePlan.REWRITE_FILES, CHANGES, DEFAULT_LIMITS, CHANGED, ATTEMPT_GONE
    ),
}


class Race:
    """A first merge, in the midst of which another one goes as far as it is let."""

    def __init__(self, small: SmallLake, patch: pytest.MonkeyPatch) -> None:
        self.other = Lake(small.lake.root)
        self.small, self.patch = small, patch
        self.errors: list[MergeError] = []
        self.ways: set[WritePlan] = set()

    def run(self, at: str = "before_merge_commit") -> None:
        """Merge; at a crash point the other merge does one round of one transaction."""
        is_begun = False

        def interfere(point: str) -> None:
            nonlocal is_begun
            if point == at and not is_begun:
                is_begun = True
                self._keep_error(self._merge_first)

        with self.patch.context() as patch:
            for module in (merge, committer):
                patch.setattr(module, "reach", interfere)
            self._keep_error(lambda: self.small.merge(on_round=self.keep_ways))
        assert is_begun

    def _merge_first(self) -> None:
        stop, spark = threading.Event(), self.small.spark.newSession()

        def end(done: Round) -> None:
            self.keep_ways(done)
            stop.set()

        limits = self.small.limits
        merge_until(spark, self.other, round_rows=1, stop=stop, on_round=end, limits=limits)

    def keep_ways(self, done: Round) -> None:
        self.ways.update(merged.way for merged in done.tables.values())

    def _keep_error(self, work: Callable[[], object]) -> None:
        try:
            work()
        except MergeError as error:
            self.errors.append(error)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    chosen = WAYS[request.param]
    if not chosen.is_typed:
        monkeypatch.setattr(arrow_copy, "_find_wanted", lambda *_: None)
    return chosen


@pytest.fixture
def race(way: Way, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Race:
    small = SmallLake(spark, tmp_path, limits=way.limits)
    small.merge([insert(T, str(k), "a") for k in (1, 2, 3)])
    small.merge([delete(T, "3")])
    for entries in way.changes:
        small.commit(entries)
    return Race(small, monkeypatch)


def test_two_merges_from_two_folders_go_one_after_the_other(
    way: Way, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_wait, "_DEADLINE_S", 0.1)
    race.run()
    assert ["locked by another process" in error.message for error in race.errors] == [True]
    assert race.ways == {way.plan}
    assert race.small.rows(T) == way.left


def test_two_merges_that_no_lock_keeps_apart_leave_each_row_once(
    way: Way, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lake, "lock_table", lambda *_, **__: nullcontext())
    race.run()
    said = [error.message.rpartition("public.t: ")[2] for error in race.errors]
    assert said == [way.refusal]
    race.small.merge(on_round=race.keep_ways)
    assert race.ways == {way.plan}
    assert race.small.rows(T) == way.left


def test_a_round_that_another_has_overtaken_writes_no_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round found the table halted. Before its end, another process cured the table."""
    small = SmallLake(spark, tmp_path)
    small.merge([insert(T, "1", "a")])
    small.commit([insert(AGAIN, "2", "b")])
    (start,) = small.commit([mark(T)])
    monkeypatch.setattr(Lake, "lock_table", lambda *_, **__: nullcontext())
    is_cured, require_newest = False, rounds._require_newest

    def cure_first(round_start: RoundStart, failures: Failures) -> None:
        nonlocal is_cured
        if not is_cured:
            is_cured = True
            small.merge([read(AGAIN, "2", "b")], [sweep(AGAIN, start=start)])
        require_newest(round_start, failures)

    monkeypatch.setattr(rounds, "_require_newest", cure_first)
    with pytest.raises(MergeError, match=OVERTAKEN):
        small.merge()
    assert read_states(small.lake)["public.t"].state is TableState.STREAMING
    small.merge([insert(AGAIN, "3", "c")])
    assert small.rows(AGAIN) == [(2, "b"), (3, "c")]


@pytest.mark.parametrize("way", ["added", "added_by_spark", "rewritten_by_arrow"], indirect=True)
def test_a_commit_that_another_has_overtaken_is_refused(
    way: Way, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lake, "lock_table", lambda *_, **__: nullcontext())
    race.run("before_files_committed")
    said = [error.message.rpartition("public.t: ")[2] for error in race.errors]
    assert said == ["CommitFailedError"]
    race.small.merge(on_round=race.keep_ways)
    assert race.ways == {way.plan}
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
    lake = Lake(locate_lake(tmp_path / "lake"))
    names = [str(TableName('"' * 63, '"' * 62 + end)) for end in "ab"]
    with lake.lock_table(names[0], jvm=None), lake.lock_table(names[1], jvm=None):
        held = [*path_of(lake.root / "locks").iterdir()]
    assert len(held) == 2
    with lake.lock_table(names[0], jvm=None):
        assert [*path_of(lake.root / "locks").iterdir()] == held


def test_an_attempt_takes_in_nothing_that_another_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(3).coalesce(1)
    with attempting(LocalPlace.of(tmp_path), version=1) as attempt:
        (file,) = write_files(rows, attempt)
        with attempting(LocalPlace.of(tmp_path), version=1) as another:
            (other,) = write_files(rows, another)
            (next_file,) = write_files(rows, attempt)
        assert not other.path.exists()
        assert file.path.exists()
        assert next_file.path.exists()
    assert len({file.path.name, other.path.name, next_file.path.name}) == 3
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
