"""What a range holds is the same by Spark and by Arrow."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.lake_layout import DELTA_LOG
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound
from spark_jobs.log import backlog, ranges, round_log
from spark_jobs.log.files import LogFiles, LogRange
from spark_jobs.log.ranges import RangeSummary, summarize, summarize_files
from spark_jobs.log.reading import read_log
from tests.lakes import path_of
from tests.spark.relations import (
    Entry,
    delete,
    insert,
    make_relation,
    mark,
    read,
    sweep,
    truncate,
    update,
)
from tests.spark.small_lake import SmallLake
from tests.spark.table_files import read_each_file_apart

A = make_relation("a", "k int4, v text, w text")
B = make_relation("Ünï.b", "k int4, v text, w text", identity="f")
# Where row groups of these rows are read by as many bytes, or each by itself.
ROW_GROUPS = {"one row group": 1_000, "several, one by one": 3}


def random_entry(chance: random.Random) -> Entry:
    relation, key = chance.choice([A, A, B]), str(chance.randrange(5))
    row: list[str | None] = [key, chance.choice([None, "x"]), "y"]
    old = chance.choice([None, row])
    unchanged = chance.choice([None, [], [1], [2], [1, 2]])
    return chance.choice(
        [
            insert(relation, *row),
            update(relation, *row, old=old, unchanged=unchanged),
            update(relation, *row, old=old, unchanged=unchanged),
            delete(relation, key, None, None),
            truncate(relation),
            sweep(relation, start=16),
            mark(relation),
            read(relation, *row),
        ]
    )


def write_history(small: SmallLake, chance: random.Random) -> list[Bound]:
    """Some epochs of transactions in some files, some entries twice; the ends of transactions."""
    ends = [Bound(1, Lsn(small.log.lsn))]
    for epoch in range(1, 4):
        if epoch > 1:
            # A newer epoch may have smaller LSNs.
            small.log.begin_epoch(chance.choice([16, small.log.lsn]))
        for _ in range(chance.randrange(1, 5)):
            for _ in range(chance.randrange(1, 4)):
                entries = [random_entry(chance) for _ in range(chance.randrange(1, 6))]
                ends.append(Bound(small.log.epoch, Lsn(small.log.add(entries))))
            small.log.commit(repeat=chance.choice([0, 2]))
    return ends


def scatter(files: list[Path], folder: Path, chance: random.Random, row_group: int) -> list[Path]:
    """Write what files hold into two, in any order: nothing is taken from the order it is in."""
    entries = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    entries = entries.take(chance.sample(range(entries.num_rows), entries.num_rows))
    middle = chance.randrange(entries.num_rows + 1)
    rewritten = [folder / "one.parquet", folder / "other.parquet"]
    for path, part in zip(rewritten, (entries[:middle], entries[middle:]), strict=True):
        pq.write_table(part, path, row_group_size=row_group)
    return rewritten


def tell_apart(found: list[RangeSummary]) -> dict[object, RangeSummary]:
    by: dict[object, RangeSummary] = {
        (summary.table, summary.relation_version, summary.operation): summary for summary in found
    }
    assert len(by) == len(found)
    return by


@pytest.mark.parametrize("row_group", ROW_GROUPS.values(), ids=ROW_GROUPS)
def test_arrow_finds_in_files_what_spark_finds_in_their_entries(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, row_group: int
) -> None:
    chance = random.Random(f"{seed} {row_group}")
    small = SmallLake(spark, tmp_path)
    ends = write_history(small, chance)
    log = LogFiles.open(small.lake)
    assert log is not None
    if row_group < 1_000:
        monkeypatch.setattr(ranges, "_MAX_BYTES", 1)
    for _ in range(6):
        low, high = sorted(chance.sample(ends, 2))
        bound = chance.choice([None, low])
        files = LogRange(log, bound, high).find_files()
        assert files
        rewritten = scatter([path_of(file) for file in files], tmp_path, chance, row_group)
        expected = tell_apart(summarize(read_log(spark, log, bound, high)))
        assert tell_apart(summarize_files(map(LocalPlace.of, rewritten), bound, high)) == expected


def test_nothing_is_found_in_no_file_and_in_a_range_without_entries(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path)
    (end,) = small.commit([insert(A, "1", "x", "y")])
    log = LogFiles.open(small.lake)
    assert log is not None
    files = LogRange(log, None, Bound(1, Lsn(end))).find_files()
    assert files
    assert summarize_files([], None, Bound(1, Lsn(end))) == []
    assert summarize_files(files, Bound(1, Lsn(end)), Bound(1, Lsn(end + 16))) == []


def test_an_open_log_is_read_after_its_commits_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A round may last for an hour. Capture removes commits of the log after some minutes."""
    small = SmallLake(spark, tmp_path)
    ends = small.commit(*([insert(A, str(key), "x", "y")] for key in range(3)))
    log = LogFiles.open(small.lake)
    assert log is not None
    small.commit([insert(A, "4", "x", "y")])
    folder = path_of(small.lake.changes)
    DeltaTable(folder).create_checkpoint()
    for version in range(DeltaTable(folder).version()):
        (folder / DELTA_LOG / f"{version:020}.json").unlink()
    high = Bound(1, Lsn(ends[-1]))
    assert log.trimmed is None
    assert read_log(spark, log, None, high).count() == 3
    assert len(LogRange(log, None, high).find_files() or ()) == len(log.files)


def test_a_round_of_large_files_has_no_survey_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> list[RangeSummary]:
        pytest.fail("Spark looks at entries that Arrow can look at")

    small = SmallLake(spark, tmp_path)
    monkeypatch.setattr(backlog, "_FEW_ENTRIES", 1)
    monkeypatch.setattr(round_log, "summarize", refuse)
    read_each_file_apart(monkeypatch)
    small.merge([insert(A, "1", "x", "y"), insert(A, "2", "x", "y")])
    small.merge([update(A, "1", None, "z", unchanged=[1]), delete(A, "2", None, None)])
    assert small.rows(A) == [(1, "x", "z")]


def test_a_log_with_deleted_entries_is_looked_at_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallLake(spark, tmp_path)
    monkeypatch.setattr(backlog, "_FEW_ENTRIES", 1)
    small.commit([insert(A, "1", "x", "y"), insert(A, "2", "x", "y")])
    path = str(small.lake.changes)
    spark.sql(f"alter table delta.`{path}` set tblproperties (delta.enableDeletionVectors = true)")
    spark.sql(f"delete from delta.`{path}` where values[0] = '2'")
    (done,) = small.merge()
    assert small.rows(A, "k") == [(1,)]
    assert done.entries == 1
