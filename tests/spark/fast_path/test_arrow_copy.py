"""A first copy typed by Arrow: the table that Spark's expressions give; its bounds are true."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.fast_path import arrow_copy
from spark_jobs.lake.lake import open_table, read_losses
from spark_jobs.merge import merge
from tests.lakes import path_of
from tests.spark.plain_rows import PLAIN, make_row, read_json
from tests.spark.relations import Entry, insert, make_relation, read, sweep, truncate, update
from tests.spark.small_lake import SPARK_ONLY, SmallLake
from tests.spark.table_files import leave_attempt, require_nothing_left

SEED = 20261122
# Even one read is set apart, and Arrow rewrites no files.
LIMITS = replace(SPARK_ONLY, unshared_reads=1)


class Recorder:
    """How often reads were typed by Arrow, and how often their files became the table's."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.typed, self.moved = 0, 0
        type_all = arrow_copy._type_all
        typed: set[LakePlace] = set()

        def record_typed(*arguments: Any) -> Any:
            files = type_all(*arguments)
            self.typed += files is not None
            typed.update(file.path for file in files or ())
            return files

        def record_moved(
            path: LakePlace, table: DeltaTable, change: FileChange, **options: Any
        ) -> None:
            commit_files(path, table, change, **options)
            self.moved += not typed.isdisjoint(file.path for file in change.added)

        patch.setattr(arrow_copy, "_type_all", record_typed)
        patch.setattr(merge, "commit_files", record_moved)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> Iterator[SmallLake]:
    made = SmallLake(spark, tmp_path, limits=LIMITS)
    yield made
    require_nothing_left(path_of(made.lake.root) / "tables")


def test_a_table_typed_by_arrow_is_the_one_that_spark_would_write(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    rows = [make_row(rng, key) for key in rng.sample(range(-(10**12), 10**12), 400)]
    found = []
    for way in ("by Arrow", "by Spark"):
        small = SmallLake(spark, tmp_path / way, limits=LIMITS)
        with monkeypatch.context() as patch:
            if way == "by Spark":
                patch.setattr(arrow_copy, "_find_wanted", lambda *_: None)
            # Later chunks are added to a table that is there.
            for part in (rows[:150], rows[150:300], rows[300:]):
                for at in range(0, len(part), 30):
                    small.log.add([read(PLAIN, *row) for row in part[at : at + 30]])
                    small.log.commit()
                small.merge()
        found.append(read_json(small, PLAIN))
        delta = open_table(small.lake.locate(PLAIN.table))
        assert delta is not None
        assert read_losses(delta) == {}
    assert (recorder.typed, recorder.moved) == (3, 3)
    assert len(found[0]) == len(rows)
    assert found[0] == found[1]


def test_tasks_find_what_they_need_loaded(spark: SparkSession) -> None:
    parents = spark.sparkContext.parallelize([0], 1).map(
        lambda _: psutil.Process().parent().cmdline()
    )
    ((*_, daemon, _worker),) = parents.collect()
    assert daemon == "spark_jobs.fast_path.task_daemon"


def test_the_files_have_true_bounds(
    small: SmallLake, spark: SparkSession, recorder: Recorder
) -> None:
    rng = random.Random(SEED)
    rows = [make_row(rng, key) for key in range(200)]
    for at in range(0, 200, 25):
        small.log.add([read(PLAIN, *row) for row in rows[at : at + 25]])
        small.log.commit()
    small.merge()
    assert recorder.moved == 1
    path = small.lake.locate(PLAIN.table)
    (commit,) = [
        file for file in path_of(path / "_delta_log").glob("*.json") if '"add"' in file.read_text()
    ]
    added = [json.loads(line)["add"] for line in commit.read_text().splitlines() if '"add"' in line]
    assert len(added) > 1, "two tasks"
    bounded = {*"ktubndmzp", "_epoch", "_commit_lsn", "_seq", "_committed_at"}
    for file in added:
        statistics = json.loads(file["stats"])
        own = spark.read.parquet(str(path / file["path"]))
        assert statistics["numRecords"] == own.count()
        # Of floats only where all of them are numbers.
        assert statistics["minValues"].keys() | {"f"} == bounded | {"f"}
        for name in bounded - {"f"}:
            kind = own.schema[name].dataType
            least, most = (
                F.lit(statistics[end].get(name)).cast(kind) for end in ("minValues", "maxValues")
            )
            outside = own.where((F.col(name) < least) | (F.col(name) > most))
            assert outside.count() == 0, (name, statistics)
        for name, nulls in statistics["nullCount"].items():
            assert own.where(F.col(name).isNull()).count() == nulls, name
    # By them a reader passes over files.
    (only,) = small.spark.read.format("delta").load(str(path)).where("k = 7").collect()
    assert only["t"] == rows[7][1]


T = make_relation("t", "k int4, v text")
WIDER = make_relation("t", "k int4, v text, w int4", w={"missing_value": "7", "has_default": True})
NOT_PLAIN: dict[str, tuple[list[Entry], list[tuple[Any, ...]]]] = {
    "a text that does not fit": ([read(T, "1", "a"), read(T, "x", "b")], [(1, "a"), (None, "b")]),
    "two widths": ([read(T, "1", "a"), read(WIDER, "2", "b", "3")], [(1, "a"), (2, "b")]),
    "more zeros than the type has": (
        [read(make_relation("t", "k int4, v numeric"), "1", "1.5" + "0" * 20)],
        [(1, Decimal("1.5"))],
    ),
    "a key that is not exact": (
        [read(make_relation("t", "k date, v text"), "2026-01-01", "a")],
        [(date(2026, 1, 1), "a")],
    ),
}


def test_raw_keeps_the_text_of_a_number(small: SmallLake, recorder: Recorder) -> None:
    numbers = make_relation("t", "k int4, v numeric")
    (done,) = small.merge([read(numbers, "1", "1.50"), read(numbers, "2", "1.5")])
    assert recorder.moved == 1
    assert small.rows(numbers, "k", "v", "_raw") == [
        (1, Decimal("1.5"), {"v": "1.50"}),
        (2, Decimal("1.5"), None),
    ]
    assert not any(done.tables["public.t"].lossy.values())


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_spark(
    small: SmallLake, recorder: Recorder, what: str
) -> None:
    entries, expected = NOT_PLAIN[what]
    small.merge(entries)
    assert small.rows(T, "k", "v") == sorted(expected, key=repr)
    assert recorder.moved == 0


def test_what_a_process_that_died_left_is_in_no_table(small: SmallLake, recorder: Recorder) -> None:
    small.merge([read(T, "1", "a")])
    path_of(leave_attempt(small, T)).write_bytes(b"half")
    small.merge([read(T, "2", "b")])
    assert small.rows(T) == [(1, "a"), (2, "b")]
    assert recorder.moved == 2


def test_keys_that_are_named_again_keep_files_from_being_the_table_s(
    small: SmallLake, recorder: Recorder
) -> None:
    small.merge([read(T, "1", "a"), read(T, "2", "b"), insert(T, "9", "new")])
    assert (recorder.typed, recorder.moved) == (1, 1), "a change of another key is no reason"
    small.merge([read(T, "3", "a"), read(T, "4", "b"), update(T, "4", "c")])
    small.merge([read(T, "5", "a"), read(T, "6", "b"), read(T, "6", "c")])
    assert (recorder.typed, recorder.moved) == (3, 1)
    small.merge([read(T, "7", "a"), read(T, "2", "again")])
    assert (recorder.typed, recorder.moved) == (4, 1), "the table has one of the keys"
    assert small.rows(T) == [
        (1, "a"), (2, "again"), (3, "a"), (4, "c"), (5, "a"), (6, "c"), (7, "a"), (9, "new")
    ]  # fmt: skip


def test_reads_are_typed_by_spark_where_a_task_fails(
    small: SmallLake,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(arrow_copy, "type_files", fail)
    with caplog.at_level("WARNING", "walgate.merge"):
        small.merge([read(T, "1", "secret")])
    assert small.rows(T) == [(1, "secret")]
    assert (recorder.typed, recorder.moved) == (0, 0)
    (warning,) = caplog.records
    assert "secret" not in str(vars(warning))


def fail(*_: Any, **__: Any) -> None:
    raise OSError("no room for secret")


def test_reads_of_which_one_is_missing_are_typed_by_spark(
    small: SmallLake, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_copy, "_divide", lose_a_file)
    for key in "123":
        small.commit([read(T, key, "a")])
    small.merge()
    assert small.rows(T) == [(1, "a"), (2, "a"), (3, "a")]
    assert (recorder.typed, recorder.moved) == (1, 0)


def lose_a_file(sources: Any, _: int) -> list[list[LakePlace]]:
    return [[path] for path in sources][1:]


def test_reads_before_a_truncate_are_gone(small: SmallLake, recorder: Recorder) -> None:
    small.merge([read(T, "1", "gone")], [truncate(T)], [read(T, "2", "there")])
    assert small.rows(T) == [(2, "there")]
    assert recorder.typed == 0


def test_a_sweep_finds_what_is_old_in_typed_files(small: SmallLake, recorder: Recorder) -> None:
    small.merge([read(T, "1", "old"), read(T, "2", "old")])
    assert recorder.moved == 1
    began = small.log.add([read(T, "2", "new")])
    small.merge([sweep(T, start=began)])
    assert small.rows(T) == [(2, "new")]


def test_columns_may_have_any_name(small: SmallLake, recorder: Recorder) -> None:
    names = ["reads", "a.b", "Ünï", "`q`", "id1", "a"]
    odd = make_relation("odd", ", ".join(f"{name} text" for name in names), key="reads a.b")
    small.merge([read(odd, "1", "x", *"abcd"), read(odd, "1", "y", *"abcd")])
    small.merge([read(odd, "1", "z", *"abcd"), insert(odd, "2", "x", *"abcd")])
    small.merge([read(odd, "1", "x", *"efgh")])
    rows = small.spark.read.format("delta").load(str(small.lake.locate(odd.table)))
    found = sorted(tuple(row)[: len(names)] for row in rows.collect())
    assert found == [
        ("1", "x", *"efgh"), ("1", "y", *"abcd"), ("1", "z", *"abcd"), ("2", "x", *"abcd")
    ]  # fmt: skip
    assert (recorder.typed, recorder.moved) == (3, 2)


def test_reads_below_a_sweep_are_not_brought_back(small: SmallLake, recorder: Recorder) -> None:
    began = small.log.add([read(T, "1", "gone")])
    small.log.add([read(T, "2", "there")])
    small.log.add([sweep(T, start=began + 16)])
    small.log.commit()
    small.merge()
    assert small.rows(T) == [(2, "there")]
    assert (recorder.typed, recorder.moved) == (0, 0)
    small.log.add([read(T, "3", "there")])
    small.log.add([sweep(T, start=began + 16)])
    small.log.commit()
    small.merge()
    assert small.rows(T) == [(2, "there"), (3, "there")]
    assert recorder.moved == 1


def test_keys_that_are_too_many_are_counted_by_spark(
    small: SmallLake, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_copy, "_MAX_KEY_BYTES", 10)
    small.merge([read(T, str(key), "a") for key in range(10)])
    assert (recorder.typed, recorder.moved) == (1, 0)
    assert small.rows(T) == sorted(((key, "a") for key in range(10)), key=repr)


def test_rows_near_are_looked_at_by_spark_where_they_are_many(
    small: SmallLake, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_copy, "_MAX_NEAR", 1)
    small.merge([read(T, "1", "a"), read(T, "3", "a")])
    small.merge([read(T, "2", "b"), read(T, "4", "b")])
    small.merge([read(T, "3", "c"), read(T, "5", "c")])
    assert recorder.moved == 2
    assert small.rows(T) == [(1, "a"), (2, "b"), (3, "c"), (4, "b"), (5, "c")]


def test_files_far_from_the_keys_are_not_opened(
    small: SmallLake, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([read(T, "1", "a"), read(T, "3", "a")])
    opened: list[str] = []
    before = {str(file) for file in small.lake.locate(T.table).list_matching("*.parquet")}

    def tell(file: LakePlace) -> pa.NativeFile:
        opened.append(str(file))
        return open_input(file)

    monkeypatch.setattr(arrow_copy, "open_input", tell)
    small.merge([read(T, "4", "b"), read(T, "9", "b")])
    assert before.isdisjoint(opened)
    before = {str(file) for file in small.lake.locate(T.table).list_matching("*.parquet")}
    small.merge([read(T, "8", "c")])
    assert len(before.intersection(opened)) == 1
    assert recorder.moved == 3
