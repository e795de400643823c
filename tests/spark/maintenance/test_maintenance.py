"""What maintenance removes and what it keeps, with real merges and readers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.vocabulary import Lsn, Relation
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Bound, find_bound, read_losses
from spark_jobs.lake.leases import holding_lease
from spark_jobs.lake.ledger import find_cut, find_oldest_bound, read_requests, write_cut
from spark_jobs.log.files import LogFiles
from spark_jobs.maintenance import compaction, cut_ledgers, maintenance
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.query.as_of import keep_newest, table_at
from spark_jobs.query.read_bound import find_bound_at
from tests.lakes import path_of
from tests.spark.maintenance.maintained_lake import NOTHING, Keeper
from tests.spark.relations import insert, make_relation, mark, read, sweep, update
from tests.spark.small_lake import MERGE_ONLY, SmallLake
from tests.spark.table_files import APART

T, IDLE = make_relation("t", "k int4, v text"), make_relation("idle", "k int4")
# v was dropped and added again.
NEW = make_relation("t", "k int4, v text", v={"attnum": 3})
HOUR = timedelta(hours=1)
# Cuts go at once, and what they named an hour later.
LATER = Keeping(NOTHING, HOUR, NOTHING, NOTHING)
# The same after ten minutes: a lease lives longer.
MINUTE = timedelta(minutes=1)
SOON = Keeping(NOTHING, 10 * MINUTE, NOTHING, NOTHING)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Two tables; one of them has changed three times since."""
    small = SmallLake(spark, tmp_path)
    small.merge([insert(T, "1", "a"), insert(IDLE, "1")])
    for value in ("b", "c", "d"):
        small.merge([update(T, "1", value)])
    return small


@pytest.fixture
def keeper(lake: SmallLake, tmp_path: Path) -> Keeper:
    return Keeper(lake.lake, tmp_path / "spool")


def count_data_files(lake: SmallLake) -> int:
    return len(list(path_of(lake.lake.locate(T.table)).glob("*.parquet")))


def maintain_twice(keeper: Keeper) -> None:
    """Drop the cuts, and later what they named."""
    for late in (20 * MINUTE, 40 * MINUTE):
        keeper.maintain(SOON, later=late)


def test_commits_of_the_cuts_go_early_and_their_files_do_not(
    lake: SmallLake, keeper: Keeper
) -> None:
    """Each round adds a commit, and each read of the newest cut lists them all."""
    folder, keeping = path_of(lake.lake.cuts), replace(LATER, commit_life=NOTHING)
    commits = folder / "_delta_log"
    DeltaTable(folder).create_checkpoint()  # The commits below it are not needed any more.
    checkpoint = DeltaTable(folder).version()
    opened, before = DeltaTable(folder), {*folder.glob("*.parquet")}
    assert keeper.maintain(keeping).dropped_cuts == 3
    assert min(int(file.stem) for file in commits.glob("*.json")) == checkpoint > 0
    assert before <= {*folder.glob("*.parquet")}
    assert opened.to_pyarrow_table().num_rows == len(before)
    keeper.maintain(keeping, later=2 * HOUR)
    assert not before & {*folder.glob("*.parquet")}


def test_no_checkpoint_names_files_that_left_its_table_long_ago(
    lake: SmallLake, keeper: Keeper
) -> None:
    """Each opening of a table reads these names. Delta's default is a week."""
    keeper.maintain(LATER)
    keeper.tend()
    logs = [log for log in path_of(lake.lake.root).rglob("_delta_log") if log.is_dir()]
    lives = {
        log.parent.name: DeltaTable(log.parent)
        .metadata()
        .configuration.get("delta.deletedFileRetentionDuration")
        for log in logs
    }
    assert {"changes", "t", "cuts", "dropped_cuts", "maintenance"} <= lives.keys()
    assert set(lives.values()) == {"interval 1 hours"}, lives


def test_what_a_dropped_cut_named_stays_until_the_grace_is_over(
    lake: SmallLake, keeper: Keeper
) -> None:
    cut = find_cut(lake.lake)
    assert cut is not None
    first = DeltaTable(path_of(lake.lake.locate(T.table)), version=1)
    before = count_data_files(lake)
    done = keeper.maintain(LATER)
    assert (done.dropped_cuts, len(done.cuts), done.cleaned.removed.files) == (3, 1, 0)
    # A reader that had opened a version, and one that had only found the cut.
    assert first.to_pyarrow_table()["v"].to_pylist() == ["a"]
    keeper.maintain(LATER, later=HOUR - timedelta(minutes=1))
    assert count_data_files(lake) == before
    keeper.maintain(LATER, later=2 * HOUR)
    assert count_data_files(lake) == 1
    assert lake.rows(T) == [(1, "d")]
    assert lake.plain(lake.at(T, int(cut.bound.lsn)).rows, T) == [(1, "d")]


def test_a_reader_with_a_lease_keeps_its_cut_and_the_log(lake: SmallLake, keeper: Keeper) -> None:
    oldest = find_oldest_bound(lake.lake)
    assert oldest is not None
    with holding_lease(lake.lake, oldest):
        keeper.maintain()
        keeper.tend()
        keeper.maintain()
        assert lake.plain(lake.at(T, int(oldest.lsn)).rows, T) == [(1, "a")]
    keeper.maintain()
    assert find_oldest_bound(lake.lake) != oldest


def test_a_verification_compares_a_version_that_no_cut_names_after_the_grace(
    lake: SmallLake, keeper: Keeper
) -> None:
    cut = find_cut(lake.lake)
    assert cut is not None
    DeltaTable(path_of(lake.lake.locate(T.table))).update(new_values={"v": "other"})
    with holding_lease(lake.lake, cut.bound) as lease:
        keep_newest(lake.lake, T.table, cut.bound, lease)
        lake.merge([update(T, "1", "e")])
        maintain_twice(keeper)
        reading = table_at(lake.spark, lake.lake, T.table, cut.bound, lease_of_newest=lease)
        assert lake.plain(reading.rows, T) == [(1, "other")]
    before = count_data_files(lake)
    keeper.maintain(SOON, later=50 * MINUTE)
    assert count_data_files(lake) < before


def test_a_verification_compares_the_version_of_a_cut_that_came_after_its_lease(
    lake: SmallLake, keeper: Keeper
) -> None:
    later = Bound(lake.log.epoch, Lsn(lake.log.lsn + 1_000))
    with holding_lease(lake.lake, later) as lease:
        lake.merge([update(T, "1", "e")])
        reading = table_at(lake.spark, lake.lake, T.table, later, lease_of_newest=lease)
        lake.merge([update(T, "1", "f")])
        maintain_twice(keeper)
        assert lake.plain(reading.rows, T) == [(1, "e")]


def test_nothing_that_readers_may_need_goes_while_a_lease_cannot_be_read(
    lake: SmallLake, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    before, oldest = count_data_files(lake), find_oldest_bound(lake.lake)
    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "list_leased", fail)
        done = keeper.maintain(LATER, later=2 * HOUR)
    assert "Permission denied" in str(done.problems)
    assert (count_data_files(lake), find_oldest_bound(lake.lake)) == (before, oldest)
    assert done.floor is not None
    keeper.maintain(LATER, later=2 * HOUR)
    assert find_oldest_bound(lake.lake) != oldest


def test_an_idle_table_that_an_old_cut_names_reads_after_its_next_merge(
    lake: SmallLake, keeper: Keeper
) -> None:
    """History 25."""
    named = find_cut(lake.lake)
    assert named is not None
    with holding_lease(lake.lake, named.bound):
        lake.merge([insert(IDLE, "2")])
        keeper.maintain()
        assert lake.plain(lake.at(IDLE, int(named.bound.lsn)).rows, IDLE) == [(1,)]
    assert lake.rows(IDLE) == [(1,), (2,)]


def test_a_table_without_changes_does_not_hold_the_log(lake: SmallLake, keeper: Keeper) -> None:
    """History 24."""
    keeper.maintain()
    keeper.tend()
    log, cut = LogFiles.open(lake.lake), find_cut(lake.lake)
    assert log is not None
    assert cut is not None
    # The newest file stays; all before it is gone.
    assert len(log.files) == 1
    assert log.trimmed is not None
    assert log.trimmed < cut.bound
    assert lake.merge() == []
    lake.merge([insert(IDLE, "2")])
    assert lake.rows(IDLE) == [(1,), (2,)]


@pytest.mark.parametrize("kind", ["lsn", "time"])
def test_a_point_below_what_is_kept_names_what_can_be_read(
    lake: SmallLake, keeper: Keeper, kind: str
) -> None:
    first = find_oldest_bound(lake.lake)
    log = LogFiles.open(lake.lake)
    assert first is not None
    assert log is not None
    time = lake.log.log_time - timedelta(milliseconds=1)
    keeper.maintain()
    keeper.tend()
    newest = find_oldest_bound(lake.lake)
    assert newest is not None
    with pytest.raises(LakeError) as failure:
        find_bound_at(lake.lake, first.lsn if kind == "lsn" else time)
    assert str(newest.lsn) in failure.value.message + failure.value.fix
    assert find_bound_at(lake.lake, newest.lsn) == newest


def test_a_read_whose_cut_was_dropped_fails_and_gives_no_rows(
    lake: SmallLake, keeper: Keeper
) -> None:
    first = find_oldest_bound(lake.lake)
    assert first is not None
    at = Bound(first.epoch, Lsn(first.lsn + 1))
    keeper.maintain()
    keeper.tend()
    with pytest.raises(LakeError, match="maintenance has dropped the cut"):
        table_at(lake.spark, lake.lake, T.table, at)


def test_a_deleted_table_is_not_rebuilt_from_a_trimmed_log_as_if_it_were_whole(
    lake: SmallLake, keeper: Keeper
) -> None:
    keeper.maintain()
    keeper.tend()
    shutil.rmtree(path_of(lake.lake.locate(IDLE.table)))
    lake.merge([insert(IDLE, "2")])
    assert [request.table for request in read_requests(lake.lake)] == ["public.idle"]
    cut = find_cut(lake.lake)
    assert cut is not None
    assert "public.idle" in cut.partial


def halt(lake: SmallLake) -> int:
    """Halt the table by a change that it cannot follow; later changes go on."""
    (at,) = lake.commit([update(NEW, "1", "e"), insert(IDLE, "2")])
    lake.merge()
    for key in ("3", "4"):
        lake.merge([insert(NEW, key, "f"), insert(IDLE, key)])
    return at


def test_retention_wins_over_a_halted_table_which_then_asks_for_a_backfill(
    lake: SmallLake, keeper: Keeper
) -> None:
    halt(lake)
    done = keeper.maintain()
    assert done.queued == ("public.t",)
    assert keeper.maintain().queued == (), "it is queued once"
    assert keeper.tend() > 0
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.halted == ("public.t",)
    reading = lake.at(T, int(cut.bound.lsn))
    assert reading.halt is not None
    assert lake.plain(reading.rows, T) == [(1, "d")]
    # Live, too, its lost changes are no reason to fold those that are left.
    (end,) = lake.commit([insert(NEW, "5", "g")])
    reading = lake.at(T, end)
    assert (reading.halt is not None, lake.plain(reading.rows, T)) == (True, [(1, "d")])
    assert read_completeness(lake.lake).find_incomplete("public.t") is not None
    # A backfill that began after the trim cures it.
    (start,) = lake.commit([mark(IDLE)])
    lake.merge(
        [read(NEW, "1", "e"), read(NEW, "3", "f"), read(NEW, "4", "f"), read(NEW, "5", "g")],
        [sweep(NEW, start=start)],
    )
    assert lake.rows(NEW, "k", "v") == [(1, "e"), (3, "f"), (4, "f"), (5, "g")]


@pytest.mark.parametrize("later", [T, NEW], ids=["can be followed", "cannot be followed"])
def test_a_halted_table_whose_changes_were_trimmed_stays_where_it_was(
    lake: SmallLake, keeper: Keeper, later: Relation
) -> None:
    halt(lake)
    keeper.maintain()
    keeper.tend()
    before = find_cut(lake.lake)
    for key in ("7", "8"):
        # The change that halted the table is gone, and this one could be folded without it.
        lake.merge([insert(later, key, "g"), insert(IDLE, key)])
        keeper.maintain()
        keeper.tend()
    cut = find_cut(lake.lake)
    assert before is not None
    assert cut is not None
    assert cut.halted == ("public.t",)
    assert cut.find_place("public.t") == before.find_place("public.t")
    assert lake.rows(T) == [(1, "d")]
    assert [request.table for request in read_requests(lake.lake)] == ["public.t"]


def test_a_backfill_that_began_before_the_trim_cures_no_table(
    lake: SmallLake, keeper: Keeper
) -> None:
    halt(lake)
    (start,) = lake.commit([mark(IDLE)])
    lake.merge([read(NEW, "1", "e"), read(NEW, "3", "f"), insert(IDLE, "8")])
    lake.merge([insert(IDLE, "9")])
    # No ledger of backfills says that this one is under way.
    keeper.maintain()
    keeper.tend()
    lake.merge([sweep(NEW, start=start), read(NEW, "4", "f")])
    cut = find_cut(lake.lake)
    assert cut is not None
    assert "public.t" in {*cut.halted, *cut.partial}


def test_cuts_of_several_epochs_in_one_file_are_found(
    lake: SmallLake, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that took the place of another one may have smaller LSNs."""
    first = find_cut(lake.lake)
    assert first is not None
    newest = Bound(2, Lsn(10))
    write_cut(lake.lake, replace(first, bound=newest))
    week = timedelta(days=7)
    keeping = Keeping(week, week, week)
    monkeypatch.setattr(cut_ledgers, "_MAX_FILES", 1)
    keeper.maintain(keeping)
    assert len(DeltaTable(path_of(lake.lake.cuts)).file_uris()) == 1
    found = find_cut(lake.lake)
    assert found is not None
    assert found.bound == newest
    oldest = find_oldest_bound(lake.lake)
    assert oldest is not None
    assert oldest.epoch == 1
    assert oldest.lsn > 10
    assert find_cut(lake.lake, Bound(1, Lsn(1))) is None
    below = find_cut(lake.lake, first.bound)
    assert below is not None
    assert below.bound == first.bound


def test_small_files_become_one_and_the_table_stays_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path, limits=MERGE_ONLY)
    for key in range(11):
        small.merge([insert(T, str(key), f"v{key}")])
    folder = path_of(small.lake.locate(T.table))
    before, rows = DeltaTable(folder), small.rows(T)
    assert len(before.file_uris()) >= 10
    keeper = Keeper(small.lake, tmp_path / "spool")
    assert keeper.maintain(LATER).compacted == ("public.t",)
    after, epochs = DeltaTable(folder), small.lake.read_epochs()
    assert (len(after.file_uris()), small.rows(T)) == (1, rows)
    assert find_bound(after, epochs) == find_bound(before, epochs)
    assert read_losses(after) == read_losses(before)
    assert keeper.maintain(LATER).compacted == ()
    small.merge([update(T, "3", "new"), insert(T, "99", "last")])
    assert dict(small.rows(T))[3] == "new"
    assert len(small.rows(T)) == 12


def test_small_files_are_compacted_as_far_as_their_rows_fit_in_memory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file names a text once that all its rows have, so its size says little."""
    small = SmallLake(spark, tmp_path, limits=replace(APART, small_table_bytes=0))
    rows_of_a_file, text = 50, "a" * 1000
    for first in range(0, 11 * rows_of_a_file, rows_of_a_file):
        keys = range(first, first + rows_of_a_file)
        small.merge([insert(T, str(key), text) for key in keys])
    folder = small.lake.locate(T.table)
    assert len(open_delta(folder).file_uris()) == 11
    keeper = Keeper(small.lake, tmp_path / "spool")
    monkeypatch.setattr(compaction, "_MAX_DECODED", rows_of_a_file * len(text))
    assert keeper.maintain(LATER).compacted == ()
    monkeypatch.setattr(compaction, "_MAX_DECODED", 5 * rows_of_a_file * len(text))
    assert keeper.maintain(LATER).compacted == ("public.t",)
    assert len(open_delta(folder).file_uris()) == 8
    assert dict(small.rows(T)) == dict.fromkeys(range(11 * rows_of_a_file), text)
