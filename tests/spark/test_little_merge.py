"""Few plain changes of a small table by Arrow: the table that Spark would leave, or Spark's way."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError, MergeError
from cdc_core.vocabulary import Relation
from spark_jobs.delta import direct_parquet
from spark_jobs.fast_path import arrow_merge
from spark_jobs.lake.lake import Lake, find_bound, open_table
from spark_jobs.log import in_memory, round_log
from spark_jobs.log.files import LogFiles
from spark_jobs.merge import merge
from spark_jobs.merge.rounds import Round
from tests.spark.plain_rows import PLAIN, make_row, read_json
from tests.spark.relations import (
    Entry,
    delete,
    insert,
    make_relation,
    read,
    sweep,
    truncate,
    update,
)
from tests.spark.small_lake import SmallLake

SEED = 20261123
WHOLE = replace(PLAIN, table=replace(PLAIN.table, name="whole"), identity=PLAIN.identity.FULL)
PAIR = make_relation("pair", "k int4, t text, b bool, x bytea, v text", key="x b t")
T = make_relation("t", "k int4, v text, n numeric")


class Told:
    """How many merges of a table were done by Arrow, and how many were not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done, self.left = 0, 0

        def tell(*arguments: Any, **options: Any) -> Any:
            found = arrow_merge.merge_by_arrow(*arguments, **options)
            self.done += found is not None
            self.left += found is None
            return found

        patch.setattr(merge, "merge_by_arrow", tell)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> Iterator[SmallLake]:
    made = SmallLake(spark, tmp_path)
    yield made
    assert not [*made.lake.root.glob("tables/**/_attempt-*")], "nothing is left behind"


class History:
    """Random changes of tables, whose rows are those of a source; every value is sent."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rows: dict[str, dict[tuple[str, ...], list[str | None]]] = {
            str(relation.table): {} for relation in (PLAIN, WHOLE, PAIR)
        }

    def make(self, relation: Relation) -> list[str | None]:
        rng = self.rng
        if relation is not PAIR:
            return make_row(rng, rng.randrange(40))
        # Keys of few values, in another order than the columns.
        x, b, t = "\\x" + rng.choice(["", "00", "ff"]), rng.choice("tf"), rng.choice(["", "a", "é"])
        return [rng.choice([None, "1", "-7"]), t, b, x, rng.choice([None, "v", "w" * 50])]

    def change(self, relation: Relation) -> list[Entry]:
        """One transaction, in which a key that came does not go again."""
        rows, key = self.rows[str(relation.table)], relation.key
        entries: list[Entry] = []
        came: set[tuple[str, ...]] = set()
        for _ in range(self.rng.randint(1, 8)):
            new = self.make(relation)
            own = tuple(str(new[i]) for i in key)
            old = rows.get(own)
            whole = relation.identity is relation.identity.FULL
            if old is None:
                entries.append(insert(relation, *new))
                came.add(own)
            elif self.rng.random() < 0.3 and own not in came:
                sent = old if whole else [t if i in key else None for i, t in enumerate(old)]
                entries.append(delete(relation, *sent))
                del rows[own]
                continue
            elif self.rng.random() < 0.2:
                entries.append(read(relation, *new))
            else:
                entries.append(update(relation, *new, old=old if whole else None))
            rows[own] = new
        return entries


def tell(done: Round) -> dict[str, Any]:
    return {table: replace(merged, seconds=0) for table, merged in done.tables.items()}


@pytest.mark.parametrize("shared", [True, False])
def test_random_changes_leave_the_table_that_spark_would_write(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: Told,
    shared: bool,  # noqa: FBT001 - Whether files are read once for all tables.
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - Told where it fails.
    if not shared:
        monkeypatch.setattr(in_memory, "_SHARED_BYTES", 0)
    relations = (PLAIN, WHOLE, PAIR)
    found: list[list[list[str]]] = []
    said: list[list[dict[str, Any]]] = []
    ways: list[tuple[int, int]] = []
    rounds = 4
    for way in ("by Arrow", "by Spark"):
        if way == "by Spark":
            monkeypatch.setattr(arrow_merge, "_MOST_ENTRIES", 0)
        small, history = SmallLake(spark, tmp_path / way), History(SEED + shared)
        # The first rows are Spark's in any case.
        small.merge([entry for relation in relations for entry in history.change(relation)])
        at = told.done, told.left
        said.append([])
        for number in range(rounds):
            for _ in range(6):
                for relation in relations:
                    small.log.add(history.change(relation))
                # In any order, and some of it twice.
                history.rng.shuffle(small.log.pending)
                small.log.commit(repeat=history.rng.randrange(4))
            if number == 1:
                small.log.begin_epoch(8)
                small.commit(history.change(PAIR))
            (done,) = small.merge()
            said[-1].append(tell(done))
        ways.append((told.done - at[0], told.left - at[1]))
        found.append([read_json(small, relation) for relation in relations])
        for relation in relations:
            rows = history.rows[str(relation.table)]
            assert len(found[-1][relations.index(relation)]) == len(rows)
    assert ways == [(rounds * len(relations), 0), (0, rounds * len(relations))]
    assert said[0] == said[1]
    assert found[0] == found[1]


FIRST: list[Entry] = [insert(T, str(k), "a", "1.5") for k in range(1, 6)]
WIDER = make_relation("t", "k int4, v text, n numeric, w text", w={"missing_value": None})
# Changes after the first rows, and what is left of keys and their `v`.
NOT_PLAIN: dict[str, tuple[list[list[Entry]], list[tuple[int, str | None]]]] = {
    "a value that was not sent": (
        [[update(T, "1", None, "2", unchanged=[1])]],
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")],
    ),
    "a row that moved": (
        [[update(T, "9", "b", "2", old=["1", None, None])]],
        [(2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "b")],
    ),
    "a key that came and went in one transaction": (
        [[insert(T, "9", "b", "2"), delete(T, "9", None, None)]],
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a")],
    ),
    "a key of two rows in one transaction": (
        [[insert(T, "1", "b", "2"), delete(T, "1", None, None)]],
        [(1, "b"), (2, "a"), (3, "a"), (4, "a"), (5, "a")],
    ),
    "a text that its type does not hold": (
        [[insert(T, "9", "b", "NaN")]],
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "b")],
    ),
    "a text that its value does not give back": (
        [[insert(T, "9", "b", "1.50")]],
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "b")],
    ),
    "a TRUNCATE": ([[truncate(T), insert(T, "9", "b", "2")]], [(9, "b")]),
    "a sweep": ([[read(T, "1", "b", "2")], [sweep(T, start=48)]], [(1, "b")]),
    "a new column": (
        [[insert(WIDER, "9", "b", "2", "new")]],
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "b")],
    ),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_spark(small: SmallLake, told: Told, case: str) -> None:
    transactions, left = NOT_PLAIN[case]
    small.merge(FIRST)
    small.merge(*transactions)
    assert (told.done, told.left) == (0, 1)
    assert small.rows(T, "k", "v") == left


def lose(small: SmallLake) -> None:
    small.merge([insert(T, "7", "lost", "NaN")])


def delete_by_delta(small: SmallLake) -> None:
    small.spark.sql(f"delete from delta.`{small.lake.locate(T.table)}` where k = 5")


def delete_by_vector(small: SmallLake) -> None:
    place = small.lake.locate(T.table)
    small.spark.sql(
        f"alter table delta.`{place}` set tblproperties (delta.enableDeletionVectors = true)"
    )
    delete_by_delta(small)


def keep_a_feed(small: SmallLake) -> None:
    place = small.lake.locate(T.table)
    small.spark.sql(
        f"alter table delta.`{place}` set tblproperties (delta.enableChangeDataFeed = true)"
    )


@pytest.mark.parametrize("meddle", [lose, delete_by_vector, keep_a_feed])
def test_a_table_that_is_not_plain_is_left_to_spark(
    small: SmallLake, told: Told, meddle: Callable[[SmallLake], None]
) -> None:
    small.merge(FIRST)
    meddle(small)
    before = small.rows(T, "k")
    left = told.left
    small.merge([insert(T, "9", "b", "2"), delete(T, "1", None, None)])
    assert (told.done, told.left) == (0, left + 1)
    assert small.rows(T, "k") == sorted({*before, (9,)} - {(1,)})


@pytest.mark.parametrize(
    ("module", "limit"),
    [(arrow_merge, "_MOST_BYTES"), (in_memory, "_MOST_BYTES"), (arrow_merge, "_MOST_ENTRIES")],
)
def test_what_is_too_large_is_left_to_spark(
    small: SmallLake, told: Told, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str
) -> None:
    small.merge(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(module, limit, 1)
        small.merge([insert(T, "9", "b", "2"), insert(T, "10", "b", "2")])
    assert (told.done, told.left) == (0, 1)
    small.merge([delete(T, str(k), None, None) for k in (1, 2, 3, 4, 9)])
    assert (told.done, told.left) == (1, 1)
    assert small.rows(T, "k") == [(10,), (5,)]


def test_a_table_loses_its_last_row_and_gets_another(small: SmallLake, told: Told) -> None:
    small.merge(FIRST)
    (done,) = small.merge([delete(T, str(k), None, None) for k in range(1, 9)])
    merged = done.tables["public.t"]
    assert (merged.rows, merged.inserted, merged.updated, merged.deleted) == (0, 0, 0, 5)
    assert small.rows(T) == []
    (done,) = small.merge([insert(T, "1", "b", "2")])
    assert done.tables["public.t"].version == small.version(T)
    assert small.rows(T, "k", "v") == [(1, "b")]
    assert told.done == 2


@pytest.mark.parametrize("point", ["before_merge_commit", "after_merge_commit"])
def test_a_merge_that_ends_at_a_commit_is_finished_by_the_next(
    small: SmallLake, told: Told, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    small.merge(FIRST)
    before = small.version(T)
    (end,) = small.commit([insert(T, "9", "b", "2"), delete(T, "1", None, None)])

    def end_there(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(arrow_merge, "reach", end_there)
        with pytest.raises(KeyboardInterrupt):
            small.merge()
    (done,) = small.merge()
    assert small.version(T) == before + 1
    assert small.rows(T, "k") == [(2,), (3,), (4,), (5,), (9,)]
    delta = open_table(small.lake.locate(T.table))
    assert delta is not None
    bound = find_bound(delta, small.lake.read_epochs())
    assert bound == done.cut
    assert done.cut.lsn == end
    assert told.done == (1 if point == "before_merge_commit" else 0)


def test_a_round_of_few_plain_changes_asks_spark_for_nothing(
    small: SmallLake, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge(FIRST)
    opened: list[LogFiles | None] = []
    of_log = LogFiles.open

    def open_log(lake: Lake) -> LogFiles | None:
        opened.append(of_log(lake))
        return opened[-1]

    monkeypatch.setattr(LogFiles, "open", open_log)
    monkeypatch.setattr(round_log, "read_log", lambda *_: pytest.fail("a query of Spark is made"))
    monkeypatch.setattr(merge, "splitting_unshared", lambda *_: pytest.fail("it is Spark's merge"))
    small.merge([update(T, "1", "b", "2")])
    assert told.done == 1
    assert len(opened) == 1, "nothing is looked at again when all is merged"


def test_what_a_process_that_died_left_is_in_no_table(small: SmallLake, told: Told) -> None:
    small.merge(FIRST)
    path = small.lake.locate(T.table)
    (path / "_attempt-of-a-dead-process").mkdir()
    (file,) = path.glob("*.parquet")
    shutil.copy(file, path / "_attempt-of-a-dead-process" / "part-left.parquet")
    small.merge([insert(T, "9", "b", "2")])
    assert small.rows(T, "k") == [(1,), (2,), (3,), (4,), (5,), (9,)]
    assert told.done == 1


def test_a_commit_of_another_in_between_fails_the_table_alone(
    small: SmallLake, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_relation("other", "k int4")
    small.merge([*FIRST, insert(other, "1")])
    write = direct_parquet.write_file

    def interfere(rows: pa.Table, path: Path) -> list[AddAction]:
        if path == small.lake.locate(T.table):
            delete_by_delta(small)
        return write(rows, path)

    with monkeypatch.context() as patch:
        patch.setattr(arrow_merge, "write_file", interfere)
        with pytest.raises(MergeError, match=r"public.t: CommitFailedError"):
            small.merge([insert(T, "9", "b", "2"), insert(other, "2")])
    assert small.rows(other) == [(1,), (2,)]
    assert small.rows(T, "k") == [(1,), (2,), (3,), (4,)]
    small.merge()
    assert small.rows(T, "k") == [(1,), (2,), (3,), (4,), (9,)]
    assert told.done == 2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_file_of_the_log_that_cannot_be_read_is_named(
    small: SmallLake,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    shared: bool,  # noqa: FBT001 - Whether files are read once for all tables.
) -> None:
    if not shared:
        monkeypatch.setattr(in_memory, "_SHARED_BYTES", 0)
    small.merge(FIRST)
    small.commit([insert(T, "9", "b", "2")])
    file = max(small.lake.changes.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(LakeError, match=f"cannot be read: .*{file.name}") as caught:
        small.merge()
    assert "restore it" in caught.value.fix
    file.write_bytes(content)
    small.merge()
    assert small.rows(T, "k")[-1] == (9,)
