"""When rounds begin and end: how a merge is stopped, and how it lingers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import MergeError, Retry
from spark_jobs.lake.ledger import find_cut
from spark_jobs.merge.round_size import RoundSize
from spark_jobs.merge.rounds import Round, follow
from tests.lakes import path_of
from tests.spark.relations import insert, make_relation, mark, update
from tests.spark.small_lake import ALL, SmallLake

TABLE = make_relation("t", "k int4")


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    return SmallLake(spark, tmp_path)


def test_a_stop_takes_effect_between_rounds_and_the_next_merge_goes_on(small: SmallLake) -> None:
    stop = threading.Event()
    ends = [small.commit([insert(TABLE, str(k))])[0] for k in range(3)]
    rounds = small.merge(round_rows=1, stop=stop, on_round=lambda _: stop.set())
    assert [done.cut.lsn for done in rounds] == ends[:1]
    assert rounds[0].staged.lsn == ends[-1]
    cut = find_cut(small.lake)
    assert cut is not None
    assert (rounds[0].committed_at, rounds[0].created_at) == (cut.committed_at, cut.created_at)
    assert small.merge(stop=stop) == []
    assert small.merge(deadline=time.monotonic()) == []
    assert small.rows(TABLE) == [(0,)]
    assert [done.cut.lsn for done in small.merge()] == ends[-1:]
    assert small.rows(TABLE) == [(0,), (1,), (2,)]


def test_a_merge_that_follows_waits_as_it_is_told_and_goes_on_with_what_came(
    small: SmallLake,
) -> None:
    stop, rounds = threading.Event(), list[Round]()
    steps: list[Callable[[], object]] = [
        stop.set,
        lambda: small.commit([insert(TABLE, "2")]),
        lambda: small.commit([insert(TABLE, "1")]),
    ]
    follow(
        small.spark,
        small.lake,
        round_rows=ALL,
        linger_seconds=None,
        stop=stop,
        on_round=rounds.append,
        wait=lambda _: steps.pop()(),
    )
    assert not steps
    assert [done.tables["public.t"].inserted for done in rounds] == [1, 1]


def test_the_rounds_of_a_run_grow_with_what_it_has_merged(small: SmallLake) -> None:
    rounds: list[Round] = []
    keys = iter(range(100))

    def stage(count: int) -> None:
        for _ in range(count):
            small.commit([insert(TABLE, str(next(keys)))])

    steps: list[Callable[[], object]] = [lambda: stage(20)]
    stop = threading.Event()
    stage(8)
    follow(
        small.spark,
        small.lake,
        round_rows=16,
        linger_seconds=None,
        stop=stop,
        on_round=rounds.append,
        wait=lambda _: steps.pop()() if steps else stop.set(),
    )
    # At first an eighth; then as many as before, also of what came later; 16 at most.
    assert [done.entries for done in rounds] == [2, 2, 4, 8, 12]
    assert len(small.rows(TABLE)) == 28
    stage(20)
    assert [done.entries for done in small.merge(round_rows=16)] == [16, 4]


def test_a_run_after_a_failure_begins_with_a_whole_round(small: SmallLake) -> None:
    other = make_relation("other", "k int4")
    small.merge([insert(TABLE, "0"), insert(other, "0")])
    for key in range(1, 9):
        small.commit([insert(TABLE, str(key)), insert(other, str(key))])
    # As after a round that failed at one table, and merged the other.
    small.merge(
        round_rows=1,
        tables=[str(TABLE.table)],
        stop=(stop := threading.Event()),
        on_round=lambda _: stop.set(),
    )
    rounds: list[Round] = []
    follow(
        small.spark,
        small.lake,
        round_rows=14,
        linger_seconds=0,
        stop=threading.Event(),
        on_round=rounds.append,
    )
    assert [done.entries for done in rounds] == [14]
    assert len(small.rows(other)) == 9


def test_the_size_of_rounds_stops_growing_with_time() -> None:
    size = RoundSize(800)
    assert size.choose() == 100
    size.count(50, 59.0)
    assert size.choose() == 100
    size.count(130, 0.5)
    assert size.choose() == 180
    size.count(10, 0.5)
    assert size.choose() == 800
    assert RoundSize.of(size) is size
    assert RoundSize.of(800).choose() == 800


def test_a_merge_that_follows_ends_at_its_deadline(small: SmallLake) -> None:
    small.commit([insert(TABLE, "1")])
    rounds: list[Round] = []
    for seconds in (-1.0, 1.0):
        follow(
            small.spark,
            small.lake,
            round_rows=ALL,
            linger_seconds=None,
            stop=threading.Event(),
            deadline=time.monotonic() + seconds,
            on_round=rounds.append,
        )
        assert len(rounds) == (seconds > 0)


def test_marks_move_the_cut_but_a_lingering_merge_ends_all_the_same(small: SmallLake) -> None:
    small.commit([insert(TABLE, "1")])
    rounds: list[Round] = []
    follow(
        small.spark,
        small.lake,
        round_rows=ALL,
        linger_seconds=0.01,
        stop=threading.Event(),
        on_round=rounds.append,
        wait=lambda _: small.commit([mark(TABLE)]),
    )
    assert [list(done.tables) for done in rounds] in ([["public.t"]], [["public.t"], []])
    assert small.rows(TABLE) == [(1,)]


def test_a_merge_with_no_time_to_linger_takes_what_was_staged_and_no_more(
    small: SmallLake,
) -> None:
    small.commit([insert(TABLE, "1")])
    rounds: list[Round] = []

    def add(done: Round) -> None:
        rounds.append(done)
        small.commit([insert(TABLE, str(len(rounds) + 1))])

    follow(
        small.spark,
        small.lake,
        round_rows=ALL,
        linger_seconds=0,
        stop=threading.Event(),
        on_round=add,
    )
    assert len(rounds) == 1


def test_a_table_that_cannot_be_merged_keeps_no_other_from_being_merged(small: SmallLake) -> None:
    broken, sound = make_relation("broken", "k int4"), make_relation("sound", "k int4")
    small.merge([insert(broken, "1"), insert(sound, "1")])
    files = {
        path: path.read_bytes()
        for path in path_of(small.lake.locate(broken.table)).glob("*.parquet")
    }
    for path in files:
        path.write_bytes(b"damaged by hand")
    # The update makes the merge read the damaged file: an insert alone need not.
    ends = small.commit([insert(broken, "2"), update(broken, "1"), insert(sound, "2")])
    rounds: list[Round] = []
    for _ in range(2):
        with pytest.raises(MergeError, match=r"could not be merged: public\.broken: \w+") as caught:
            small.merge(on_round=rounds.append)
        assert caught.value.retry is Retry.LATER
    assert [(done.cut.lsn, list(done.tables)) for done in rounds] == [(ends[0], ["public.sound"])]
    assert small.rows(sound) == [(1,), (2,)]
    cut = find_cut(small.lake)
    assert cut is not None
    assert cut.merged["public.broken"] < cut.merged["public.sound"] == cut.bound
    for path, content in files.items():
        path.write_bytes(content)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    small.merge()
    assert small.rows(broken) == [(1,), (2,)]
