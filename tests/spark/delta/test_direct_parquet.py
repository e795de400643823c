"""Small tables read and written as plain Parquet: the same rows, and Delta where more is needed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError, MergeError
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Relation
from spark_jobs.delta import direct_parquet
from spark_jobs.delta.attempts import Attempt
from spark_jobs.lake.lake import Lake, find_bound, open_table, read_losses
from spark_jobs.log import reading
from spark_jobs.session.failures import Failures
from spark_jobs.target import commits
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import locate_lake, path_of
from tests.spark.relations import delete, insert, make_relation, update
from tests.spark.small_lake import SmallLake

ROWS = make_relation("rows", "k int4, v text, n numeric")
OTHERS = make_relation("others", "k int4, v text")
FIRST = [insert(ROWS, "1", "one", "1.5"), insert(ROWS, "2", "two", "NaN")]
PLAIN, DELTA = "delta-rs", "Apache-Spark"


def locate(small: SmallLake, relation: Relation = ROWS) -> LakePlace:
    return small.lake.locate(relation.table)


def read_commit(small: SmallLake) -> list[dict[str, Any]]:
    newest = locate(small) / "_delta_log" / f"{small.version(ROWS):020}.json"
    return [json.loads(line) for line in newest.read_text().splitlines()]


def find_writer(small: SmallLake) -> str:
    """What committed the newest version."""
    told = next(action["commitInfo"] for action in read_commit(small) if "commitInfo" in action)
    return DELTA if told.get("engineInfo", "").startswith(DELTA) else PLAIN


def test_a_small_table_is_written_without_delta_and_reads_as_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge(FIRST)
    (end,) = small.commit([update(ROWS, "1", "uno", "2"), insert(ROWS, "3", "three", None)])
    (done,) = small.merge()
    assert done.tables["public.rows"].way is WritePlan.REWRITE
    assert find_writer(small) == PLAIN
    assert small.rows(ROWS, "k", "v") == [(1, "uno"), (2, "two"), (3, "three")]
    assert small.plain(small.at(ROWS, end).rows, ROWS, "k", "v") == small.rows(ROWS, "k", "v")
    table = open_table(locate(small))
    assert table is not None
    assert find_bound(table, small.lake.read_epochs()) == small.at(ROWS, end).through
    assert read_losses(table) == {"n": 1}
    added = [json.loads(action["add"]["stats"]) for action in read_commit(small) if "add" in action]
    assert sum(one["numRecords"] for one in added) == 3
    assert sum(one["nullCount"]["_raw"] for one in added) == 2
    assert all(one["nullCount"]["_holes"] == one["numRecords"] for one in added)
    assert not [*path_of(locate(small)).glob("_attempts/*")]


def test_a_table_that_loses_every_row_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge(FIRST)
    small.merge([delete(ROWS, "1"), delete(ROWS, "2")])
    assert find_writer(small) == PLAIN
    assert small.rows(ROWS) == []
    small.merge([insert(ROWS, "4", "four", "4")])
    assert small.rows(ROWS, "k", "v") == [(4, "four")]


@pytest.mark.parametrize(
    "change",
    [
        "alter table {} add constraint positive check (k > 0)",
        "alter table {} set tblproperties (delta.columnMapping.mode = 'name')",
        pytest.param(
            "alter table {} set tblproperties (delta.enableChangeDataFeed = true)",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "alter table {} set tblproperties (delta.checkpointInterval = 3)",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_table_of_which_delta_keeps_more_is_left_to_delta(
    spark: SparkSession, tmp_path: Path, change: str
) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge([*FIRST, insert(ROWS, "5", "five", "5"), insert(ROWS, "6", "six", "6")])
    spark.sql(change.format(f"delta.`{locate(small)}`"))
    (end,) = small.commit([update(ROWS, "2", "dos", "2"), insert(ROWS, "3", "three", None)])
    small.merge()
    assert find_writer(small) == DELTA
    expected = [(1, "one"), (2, "dos"), (3, "three"), (5, "five"), (6, "six")]
    assert small.rows(ROWS, "k", "v") == expected
    assert small.plain(small.at(ROWS, end).rows, ROWS, "k", "v") == expected
    if "ChangeData" in change:
        feed = spark.read.option("readChangeFeed", True).option("startingVersion", 2)
        changed = feed.format("delta").load(str(locate(small))).where("_change_type = 'insert'")
        assert {row["k"] for row in changed.collect()} >= {3}


def test_a_table_that_is_written_whole_has_bounds(spark: SparkSession, tmp_path: Path) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge(FIRST)
    assert find_writer(small) == PLAIN
    small.limits = MergeLimits(small_table_bytes=100, small_table_rows=1, rewrite_entries=0)
    (done,) = small.merge([insert(ROWS, str(key), "v", None) for key in range(3, 103)])
    assert done.tables["public.rows"].way is WritePlan.REWRITE
    added = [json.loads(action["add"]["stats"]) for action in read_commit(small) if "add" in action]
    assert max(one["maxValues"]["k"] for one in added) == 102
    assert read_commit(small)[0]["commitInfo"]["operation"] == "WRITE"


def test_what_a_process_that_died_left_is_in_no_table(spark: SparkSession, tmp_path: Path) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge(FIRST)
    left = spark.read.format("delta").load(str(locate(small)))
    left.write.parquet(str(locate(small) / "_attempts" / "dead"))
    small.merge([insert(ROWS, "3", "three", None)])
    assert [row[0] for row in small.rows(ROWS)] == [1, 2, 3]


def test_a_lake_whose_path_is_a_pattern_to_spark_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path / "l{k,e} a*b?")
    small.merge(FIRST)
    small.merge([insert(ROWS, "3", "three", None)])
    assert [row[0] for row in small.rows(ROWS)] == [1, 2, 3]


def test_a_checkpoint_has_rows_and_bound(spark: SparkSession, tmp_path: Path) -> None:
    small = SmallLake(spark, tmp_path)
    for key in range(12):
        small.merge([insert(ROWS, str(key), "v", None)])
    log = locate(small) / "_delta_log"
    assert (log / f"{10:020}.checkpoint.parquet").exists()
    before = open_table(locate(small))
    assert before is not None
    bound = find_bound(before, small.lake.read_epochs())
    for version in range(10):
        (log / f"{version:020}.json").remove()
    assert spark._jvm is not None
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert {row[0] for row in small.rows(ROWS)} == set(range(12))
    after = open_table(locate(small))
    assert after is not None
    assert find_bound(after, small.lake.read_epochs()) == bound
    assert bound is not None


@pytest.mark.parametrize(
    ("meddle", "left"),
    [
        ("delete from {0} where k = 1", [(2, "two")]),
        (
            "insert into {0} by name select * except (k), 9 as k from {0} where k = 1",
            [(1, "one"), (2, "two"), (9, "one")],
        ),
    ],
)
def test_a_commit_of_another_in_between_fails_the_table_alone(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meddle: str,
    left: list[tuple[int, str]],
) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge([*FIRST, insert(OTHERS, "1", "one")])
    write = direct_parquet.write_files

    def interfere(rows: Any, attempt: Attempt) -> Any:
        if attempt.table == locate(small):
            spark.sql(meddle.format(f"delta.`{attempt.table}`"))
        return write(rows, attempt)

    steps = [update(ROWS, "2", "dos", "2"), insert(OTHERS, "2", "two")]
    with monkeypatch.context() as patched:
        patched.setattr(commits, "write_files", interfere)
        with pytest.raises(MergeError, match=r"public.rows: CommitFailedError"):
            small.merge(steps)
    assert small.rows(OTHERS) == [(1, "one"), (2, "two")]
    assert small.rows(ROWS, "k", "v") == left
    small.merge()
    assert small.rows(ROWS, "k", "v") == [(k, "dos" if k == 2 else v) for k, v in left]


def test_a_version_whose_files_are_gone_is_named(spark: SparkSession, tmp_path: Path) -> None:
    small = SmallLake(spark, tmp_path)
    (first,) = small.commit(FIRST)
    small.merge()
    small.merge([update(ROWS, "1", "uno", "2")])
    table = open_table(locate(small))
    assert table is not None
    kept = pa.table(table.get_add_actions())["path"].to_pylist()
    for file in path_of(locate(small)).glob("*.parquet"):
        if file.name not in kept:
            file.unlink()
    with pytest.raises(LakeError, match=r"version 1 of public.rows, which a cut names, is gone"):
        small.at(ROWS, first)


def test_the_log_is_read_whole_whoever_wrote_its_files_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path)
    ends = [small.commit([insert(ROWS, str(key), "v", None)])[0] for key in range(4)]
    log = open_table(small.lake.changes)
    assert log is not None
    log.optimize.compact(commit_properties=CommitProperties())
    small.merge()
    assert [row[0] for row in small.rows(ROWS)] == [0, 1, 2, 3]
    assert [row[0] for row in small.plain(small.at(ROWS, ends[1]).rows, ROWS)] == [0, 1]


@pytest.mark.parametrize(
    ("module", "limit", "most"),
    [
        (reading, "_MAX_FILES", 0),
        (direct_parquet, "_MAX_FILES", 0),
        (direct_parquet, "_MAX_BYTES", 1),
    ],
)
def test_more_files_than_are_worth_naming_are_read_through_delta(
    module: ModuleType,
    limit: str,
    most: int,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = SmallLake(spark, tmp_path)
    small.merge(FIRST)
    monkeypatch.setattr(module, limit, most)
    monkeypatch.setattr(module, "read_files", lambda *_: pytest.fail("they are named one by one"))
    small.merge([update(ROWS, "1", "uno", "2"), delete(ROWS, "2")])
    assert small.rows(ROWS, "k", "v") == [(1, "uno")]


def test_a_jvm_that_is_gone_is_no_failure_of_one_table(tmp_path: Path) -> None:
    failures = Failures(Lake(locate_lake(tmp_path)))
    with pytest.raises(ConnectionError), failures.apart("public.rows"):
        raise ConnectionResetError
    with failures.apart("public.rows"):
        raise OSError
    with pytest.raises(MergeError, match="rows: OSError"):
        failures.require_none()
