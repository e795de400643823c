"""Files that changes touch, rewritten by Arrow: the table that Spark would leave, or its way."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError, MergeError
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta import committer
from spark_jobs.fast_path import file_rewrite, rewrite_task
from spark_jobs.lake.lake import Lake, find_bound, open_table
from spark_jobs.log import round_log
from spark_jobs.log.files import LogFiles
from spark_jobs.log.in_memory import LogInMemory
from spark_jobs.merge import merge, targets
from spark_jobs.merge.rounds import Round
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import path_of
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
from tests.spark.table_files import (
    find_result,
    leave_attempt,
    list_unnamed,
    read_each_file_apart,
    require_nothing_left,
)

T = make_relation("t", "k int4, v text, n numeric")
OTHER = make_relation("other", "k int4")


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> Iterator[SmallLake]:
    made = SmallLake(spark, tmp_path)
    yield made
    require_nothing_left(path_of(made.lake.root) / "tables")


FIRST: list[Entry] = [insert(T, str(k), "a", "1.5") for k in range(1, 6)]
WIDER = make_relation("t", "k int4, v text, n numeric, w text", w={"missing_value": None})
UNDECIDED = "the changes do not decide a key, or a text does not fit its type"
# Changes after the first rows, why Arrow cannot make them (None if it need not be looked at), and
# what is left of keys and their `v`.
NOT_PLAIN: dict[str, tuple[list[list[Entry]], str | None, list[tuple[int, str | None]]]] = {
    "a value that was not sent and that the table lacks": (
        [[update(T, "9", None, "2", unchanged=[1])]],
        "a value was not sent, and the table has no row with its key, or several",
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, None)],
    ),
    "a row that moved twice in one transaction": (
        [
            [
                update(T, "9", None, "2", old=["1", None, None], unchanged=[1]),
                update(T, "8", None, "2", old=["9", None, None], unchanged=[1]),
            ]
        ],
        UNDECIDED,
        [(2, "a"), (3, "a"), (4, "a"), (5, "a"), (8, "a")],
    ),
    "a key of two rows in one transaction": (
        [[insert(T, "1", "b", "2"), delete(T, "1", None, None)]],
        "a transaction brought a second row of a key, and one departed",
        [(1, "b"), (2, "a"), (3, "a"), (4, "a"), (5, "a")],
    ),
    "a text that its type does not hold": (
        [[insert(T, "9", "b", "NaN")]],
        UNDECIDED,
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "b")],
    ),
    "a TRUNCATE": ([[truncate(T), insert(T, "9", "b", "2")]], None, [(9, "b")]),
    "a sweep": (
        [[read(T, "1", "b", "2")], [sweep(T, start=48)]],
        "the changes have a TRUNCATE or a sweep",
        [(1, "b")],
    ),
    "a new column": (
        [[insert(WIDER, "9", "b", "2", "new")]],
        None,
        [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (5, "a"), (9, "b")],
    ),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_spark(small: SmallLake, case: str) -> None:
    transactions, refusal, left = NOT_PLAIN[case]
    small.merge(FIRST)
    merged = find_result(small.merge(*transactions), T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE, refusal)
    assert small.rows(T, "k", "v") == left


def lose(small: SmallLake) -> None:
    small.merge([insert(T, "7", "lost", "NaN")])


def delete_by_delta(small: SmallLake) -> None:
    small.spark.sql(f"delete from delta.`{small.lake.locate(T.table)}` where k = 5")


def keep_a_feed(small: SmallLake) -> None:
    place = small.lake.locate(T.table)
    small.spark.sql(
        f"alter table delta.`{place}` set tblproperties (delta.enableChangeDataFeed = true)"
    )


# The files with deleted rows are in test_rewritten_files.py.
@pytest.mark.parametrize(
    ("meddle", "refusal"),
    [
        (lose, "the table has values that its types do not hold"),
        (keep_a_feed, "another program gave the table features, properties or columns"),
    ],
)
def test_a_table_that_is_not_plain_is_left_to_spark(
    small: SmallLake, meddle: Callable[[SmallLake], None], refusal: str
) -> None:
    small.merge(FIRST)
    meddle(small)
    before = small.rows(T, "k")
    merged = find_result(small.merge([insert(T, "9", "b", "2"), delete(T, "1", None, None)]), T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE, refusal)
    assert small.rows(T, "k") == sorted({*before, (9,)} - {(1,)})


def limit_entries(_: pytest.MonkeyPatch) -> MergeLimits:
    return MergeLimits(rewrite_entries=1)


def limit_bytes(_: pytest.MonkeyPatch) -> MergeLimits:
    return MergeLimits(rewrite_bytes=1)


def limit_files(_: pytest.MonkeyPatch) -> MergeLimits:
    return MergeLimits(rewrite_log_files=1)


def limit_memory(monkeypatch: pytest.MonkeyPatch) -> MergeLimits:
    """Have the tasks run in this process, where no entry of the log fits in memory."""

    def run(_: SparkSession, tasks: list[list[Any]], limits: MergeLimits) -> list[Any]:
        return [one for task in tasks for one in rewrite_task.rewrite_portions(task, limits)]

    def make_log(*of: Any, **more: Any) -> LogInMemory:
        return LogInMemory(*of, **(more | {"max_bytes": 1}))

    monkeypatch.setattr(file_rewrite, "_run_job", run)
    monkeypatch.setattr(rewrite_task, "LogInMemory", make_log)
    return DEFAULT_LIMITS


@pytest.mark.parametrize(
    ("limit", "refusal"),
    [
        (limit_entries, None),
        (limit_bytes, "files of more than 1 bytes have changed keys"),
        (limit_files, "the changes lie in 2 files of the log"),
        (limit_memory, "the changes do not fit in memory"),
    ],
)
def test_what_is_too_large_is_left_to_spark(
    small: SmallLake,
    monkeypatch: pytest.MonkeyPatch,
    limit: Callable[[pytest.MonkeyPatch], MergeLimits],
    refusal: str | None,
) -> None:
    small.merge(FIRST)
    small.commit([insert(T, "9", "b", "2")])
    changes = [insert(T, "10", "b", "2"), update(T, "5", "b", "2")]
    with monkeypatch.context() as patch:
        merged = find_result(small.merge(changes, limits=limit(patch)), T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE, refusal)
    small.commit([delete(T, "9", None, None)])
    merged = find_result(small.merge([delete(T, k, None, None) for k in "1234"]), T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE_FILES, None)
    assert small.rows(T, "k", "v") == [(10, "b"), (5, "b")]


def test_a_table_loses_its_last_row_and_gets_another(small: SmallLake) -> None:
    small.merge(FIRST)
    merged = find_result(small.merge([delete(T, str(k), None, None) for k in range(1, 9)]), T)
    assert (merged.rows, merged.inserted, merged.updated, merged.deleted) == (0, 0, 0, 5)
    assert merged.way is WritePlan.REWRITE_FILES
    assert small.rows(T) == []
    merged = find_result(small.merge([insert(T, "1", "b", "2")]), T)
    assert merged.version == small.version(T)
    assert merged.way is WritePlan.REWRITE_FILES
    assert small.rows(T, "k", "v") == [(1, "b")]


@pytest.mark.parametrize(
    "point", ["before_merge_commit", "before_files_committed", "after_merge_commit"]
)
def test_a_merge_that_ends_at_a_commit_is_finished_by_the_next(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    small.merge(FIRST)
    before = small.version(T)
    (end,) = small.commit([insert(T, "9", "b", "2"), delete(T, "1", None, None)])

    def end_there(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for module in (merge, committer):
            patch.setattr(module, "reach", end_there)
        patch.setattr(targets, "merge_by_spark", lambda *_, **__: pytest.fail("Spark merges"))
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
    expected = [] if point == "after_merge_commit" else [WritePlan.REWRITE_FILES]
    assert [merged.way for merged in done.tables.values()] == expected
    assert list_unnamed(small, T) == []


@pytest.mark.parametrize("driver_bytes", [0, DEFAULT_LIMITS.driver_bytes])
def test_a_round_of_few_plain_changes_is_one_job_at_most_without_a_query(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
) -> None:
    small.merge([*FIRST, insert(OTHER, "1")])
    opened: list[LogFiles | None] = []
    of_log = LogFiles.open

    def open_log(lake: Lake) -> LogFiles | None:
        opened.append(of_log(lake))
        return opened[-1]

    monkeypatch.setattr(LogFiles, "open", open_log)
    monkeypatch.setattr(round_log, "read_log", lambda *_: pytest.fail("a query of Spark is made"))
    monkeypatch.setattr(
        merge, "split_unshared", lambda *_, **__: pytest.fail("it is Spark's merge")
    )
    changes = [update(T, "1", "b", "2"), insert(OTHER, "2")]
    with counting_jobs(small.spark) as jobs:
        (done,) = small.merge(changes, limits=MergeLimits(driver_bytes=driver_bytes))
    assert {table: merged.way for table, merged in done.tables.items()} == {
        "public.other": WritePlan.REWRITE_FILES,
        "public.t": WritePlan.REWRITE_FILES,
    }
    assert len(jobs) == (0 if driver_bytes else 1)
    assert len(opened) == 1, "nothing is looked at again when all is merged"


@contextmanager
def counting_jobs(spark: SparkSession) -> Iterator[list[int]]:
    """Collect the jobs that Spark runs for this thread in a block."""
    context, jobs, group = spark.sparkContext, list[int](), f"counted-{uuid.uuid4()}"
    context.setJobGroup(group, "the jobs of one test")
    try:
        yield jobs
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    # Spark lists a job a moment after it has begun.
    context._jsc.sc().listenerBus().waitUntilEmpty()
    jobs += context.statusTracker().getJobIdsForGroup(group)


def test_what_a_process_that_died_left_is_in_no_table(small: SmallLake) -> None:
    small.merge(FIRST)
    left = path_of(leave_attempt(small, T))
    shutil.copy(next(left.parent.glob("*.parquet")), left)
    done = small.merge([insert(T, "9", "b", "2")])
    assert find_result(done, T).way is WritePlan.REWRITE_FILES
    assert small.rows(T, "k") == [(1,), (2,), (3,), (4,), (5,), (9,)]
    assert list_unnamed(small, T) == []


def test_a_commit_of_another_in_between_fails_the_table_alone(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([*FIRST, insert(OTHER, "1")])

    def interfere(path: LakePlace, *of: Any, **more: Any) -> None:
        if path == small.lake.locate(T.table):
            delete_by_delta(small)
        committer.commit_files(path, *of, **more)

    rounds: list[Round] = []
    with monkeypatch.context() as patch:
        patch.setattr(merge, "commit_files", interfere)
        with pytest.raises(MergeError, match=r"public.t: CommitFailedError"):
            small.merge([insert(T, "9", "b", "2"), insert(OTHER, "2")], on_round=rounds.append)
    assert [*rounds[0].tables] == ["public.other"]
    assert find_result(rounds, OTHER).way is WritePlan.REWRITE_FILES
    assert small.rows(OTHER) == [(1,), (2,)]
    assert small.rows(T, "k") == [(1,), (2,), (3,), (4,)]
    assert find_result(small.merge(), T).way is WritePlan.REWRITE_FILES
    assert small.rows(T, "k") == [(1,), (2,), (3,), (4,), (9,)]
    assert list_unnamed(small, T) == []


def find_newest_of_log(small: SmallLake) -> Path:
    return max(
        path_of(small.lake.changes).glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns
    )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_file_of_the_log_that_cannot_be_read_is_named(
    small: SmallLake,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    shared: bool,  # noqa: FBT001 - Whether files are read once for all tables.
) -> None:
    if not shared:
        small.limits = MergeLimits(shared_log_bytes=read_each_file_apart(monkeypatch))
    small.merge(FIRST)
    small.commit([insert(T, "9", "b", "2")])
    file = find_newest_of_log(small)
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(LakeError, match=f"cannot be read: .*{file.name}") as caught:
        small.merge()
    assert "restore it" in caught.value.fix
    file.write_bytes(content)
    assert find_result(small.merge(), T).way is WritePlan.REWRITE_FILES
    assert small.rows(T, "k")[-1] == (9,)


def test_a_table_at_which_a_task_fails_is_left_to_spark_alone(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([*FIRST, insert(OTHER, "1")])
    small.commit([insert(OTHER, "2")])
    small.commit([insert(T, "9", "b", "2"), delete(T, "1", None, None)])
    file = find_newest_of_log(small)
    content = file.read_bytes()

    @contextmanager
    def fail(*of: Any) -> Iterator[Mapping[str, Any]]:
        """Have one file of the log gone while the tasks run."""
        file.unlink()
        with file_rewrite.rewriting_files(*of) as found:
            file.write_bytes(content)
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(targets, "rewriting_files", fail)
        # Each task reads the files that have its table's changes, and no other.
        done = small.merge(limits=MergeLimits(shared_log_bytes=0))
    merged = find_result(done, T)
    assert (merged.way, merged.refusal) == (WritePlan.REWRITE, "a task failed: LakeError")
    assert find_result(done, OTHER).way is WritePlan.REWRITE_FILES
    assert small.rows(T, "k") == [(2,), (3,), (4,), (5,), (9,)]
    assert small.rows(OTHER) == [(1,), (2,)]


def test_a_job_that_fails_leaves_every_table_to_spark(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([*FIRST, insert(OTHER, "1")])
    with monkeypatch.context() as patch:
        # What the tasks call raises a TypeError in their own processes.
        patch.setattr(file_rewrite, "rewrite_portions", len)
        (done,) = small.merge(
            [insert(T, "9", "b", "2"), insert(OTHER, "2")], limits=MergeLimits(driver_bytes=0)
        )
    for merged in done.tables.values():
        assert merged.way is WritePlan.REWRITE
        assert merged.refusal is not None
        assert merged.refusal.startswith("a task failed: ")
    assert small.rows(T, "k") == [(1,), (2,), (3,), (4,), (5,), (9,)]
    assert small.rows(OTHER) == [(1,), (2,)]
    (done,) = small.merge([insert(T, "10", "b", "2"), insert(OTHER, "3")])
    assert {merged.way for merged in done.tables.values()} == {WritePlan.REWRITE_FILES}
