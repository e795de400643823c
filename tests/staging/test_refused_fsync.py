"""A disk that refuses a file once: no commit is believed whose bytes are in the refused file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_core.errors import StagingError
from cdc_core.lake_layout import CHANGES, DELTA_LOG, EPOCHS, LAST_CHECKPOINT, MAINTENANCE, RELATIONS
from cdc_core.lake_storage.durability import make_durable, rewrite_commits
from cdc_core.lake_storage.ledgers import append_numbered
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.layout import END_LSN_NOT_KNOWN
from cdc_core.staging.log import Log
from cdc_core.staging.maintenance import MaintenanceLedger, MaintenanceReport
from cdc_core.staging.parts import seal_part
from cdc_core.staging.relations import RelationStore
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Lsn
from tests.capture.test_interfaces import EPOCH, land, make_changes, make_relation
from tests.lakes import locate_lake, on_disk, path_of
from tests.refusing_disk import RefusingDisk

pytestmark = on_disk

OpenLog = Callable[[], Log]
TABLES = (CHANGES, EPOCHS, RELATIONS)


@pytest.fixture
def open_log(tmp_path: Path) -> OpenLog:
    subscription = Subscription(("walgate",), "any")
    return lambda: Log(
        locate_lake(tmp_path / "lake"), spool=tmp_path / "spool", subscription=subscription
    )


@pytest.fixture
def disk(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> RefusingDisk:
    """Lend a disk on which a log was made."""
    log = open_log()
    log.begin_epoch(EPOCH)
    land(log, 100)
    return RefusingDisk(monkeypatch)


def test_a_commit_that_the_disk_refused_is_written_anew_before_it_counts(
    open_log: OpenLog, disk: RefusingDisk
) -> None:
    log = open_log()
    log.read_staged(EPOCH)
    part = log.write_part(make_changes(200, end_lsn=248))
    disk.refuse(path_of(log.changes_folder.parent), ".json")
    with pytest.raises(StagingError, match="cannot commit to the log"):
        log.append([part], epoch=EPOCH, end_lsn=Lsn(248))
    assert disk.find_lost(path_of(log.changes_folder))
    assert log.has_landed([part])
    assert disk.find_lost(path_of(log.changes_folder)) == []
    land(log, 300)
    assert open_log().read_staged(EPOCH) == 348


def test_a_commit_that_the_disk_refused_an_earlier_session_is_written_anew(
    open_log: OpenLog, disk: RefusingDisk
) -> None:
    log = open_log()
    log.read_staged(EPOCH)
    part = log.write_part(make_changes(200, end_lsn=248))
    disk.refuse(path_of(log.changes_folder.parent), ".json")
    with pytest.raises(StagingError):
        log.append([part], epoch=EPOCH, end_lsn=Lsn(248))
    following = open_log()
    assert following.read_staged(EPOCH) == 248
    assert disk.find_lost(path_of(log.changes_folder)) == []


@pytest.mark.usefixtures("disk")
def test_the_first_read_of_the_staged_lsn_rewrites_the_newest_commits_and_the_second_does_not(
    open_log: OpenLog,
) -> None:
    open_log().store_relations([(make_relation("a"), Lsn(100))], epoch=EPOCH.epoch)
    log = open_log()
    root = path_of(log.changes_folder.parent.parent)
    newest = [max((root / table / DELTA_LOG).glob("*.json")) for table in TABLES]
    files = [[commit.stat().st_ino for commit in newest]]
    for _ in range(2):
        assert log.read_staged(EPOCH) == 148
        files.append([commit.stat().st_ino for commit in newest])
    made, after_first, after_second = files
    assert all(before != after for before, after in zip(made, after_first, strict=True))
    assert after_first == after_second


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "within one tick"])
def test_commits_that_come_between_two_reads_of_the_staged_lsn_are_rewritten(
    open_log: OpenLog, disk: RefusingDisk, monkeypatch: pytest.MonkeyPatch, *, is_seen: bool
) -> None:
    if not is_seen:
        monkeypatch.setattr(LocalPlace, "read_change", lambda _: (1, 1))
    log, other = open_log(), open_log()
    log.read_staged(EPOCH)
    other.read_staged(EPOCH)
    folder = path_of(log.changes_folder.parent)
    part = other.write_part(make_changes(200, end_lsn=248))
    disk.refuse(folder, ".json")
    with pytest.raises(StagingError):
        other.append([part], epoch=EPOCH, end_lsn=Lsn(248))
    disk.refuse(folder, ".json", times=2)
    with pytest.raises(StagingError):
        other.begin_epoch(replace(EPOCH, epoch=2))
    disk.refuse(folder, ".json", times=2)
    with pytest.raises(StagingError):
        other.store_relations([(make_relation("a"), Lsn(200))], epoch=EPOCH.epoch)
    assert len(disk.find_lost(folder)) == 3
    assert log.read_staged(EPOCH) == 248
    assert disk.find_lost(folder) == []


def test_relations_that_come_while_the_staged_lsn_is_read_are_rewritten(
    open_log: OpenLog, disk: RefusingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = open_log(), open_log()
    folder = path_of(log.changes_folder.parent)
    reload = RelationStore.reload

    def reload_after_another_writer(store: RelationStore, staged: tuple[int, Lsn] | None) -> None:
        monkeypatch.setattr(RelationStore, "reload", reload)
        disk.refuse(folder, ".json", times=2)
        with pytest.raises(StagingError):
            other.store_relations([(make_relation("a"), Lsn(100))], epoch=EPOCH.epoch)
        assert disk.find_lost(folder)
        store.reload(staged)

    monkeypatch.setattr(RelationStore, "reload", reload_after_another_writer)
    log.read_staged(EPOCH)
    assert disk.find_lost(folder) == []


@pytest.mark.usefixtures("disk")
def test_a_commit_that_was_restored_between_two_reads_of_the_staged_lsn_is_rewritten(
    open_log: OpenLog,
) -> None:
    log = open_log()
    log.read_staged(EPOCH)
    commits = path_of(log.changes_folder) / DELTA_LOG
    commit, modified = max(commits.glob("*.json")), commits.stat().st_mtime_ns
    unpacked = commit.with_suffix(".unpacked")
    unpacked.write_bytes(commit.read_bytes())
    unpacked.rename(commit)
    restored = commit.stat().st_ino
    os.utime(commits, ns=(modified, modified))
    log.read_staged(EPOCH)
    assert commit.stat().st_ino != restored


@pytest.mark.usefixtures("disk")
def test_a_commit_with_a_checkpoint_is_rewritten_by_each_read_of_the_staged_lsn(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalPlace, "read_change", lambda _: (1, 1))
    log = open_log()
    log.read_staged(EPOCH)
    DeltaTable(log.changes_folder.uri).create_checkpoint()
    commits = path_of(log.changes_folder) / DELTA_LOG
    (checkpoint,) = commits.glob("*.checkpoint.parquet")
    made = checkpoint.stat().st_ino
    log.read_staged(EPOCH)
    assert checkpoint.stat().st_ino != made


@pytest.mark.usefixtures("disk")
def test_a_session_begins_after_one_that_was_killed_in_the_middle_of_a_checkpoint(
    open_log: OpenLog,
) -> None:
    """delta-rs writes the checkpoint first, and then the file that names it."""
    log = open_log()
    log.read_staged(EPOCH)
    DeltaTable(log.changes_folder.uri).create_checkpoint()
    (path_of(log.changes_folder) / DELTA_LOG / LAST_CHECKPOINT).unlink()
    assert open_log().read_staged(EPOCH) == log.read_staged(EPOCH)


@pytest.mark.parametrize("file", [".parquet", ".json"])
def test_an_epoch_that_the_disk_refused_is_written_anew(
    open_log: OpenLog, disk: RefusingDisk, file: str
) -> None:
    log = open_log()
    disk.refuse(path_of(log.changes_folder.parent), file)
    log.begin_epoch(replace(EPOCH, epoch=2))
    assert disk.find_lost(path_of(log.changes_folder.parent)) == []


@pytest.mark.parametrize("file", [".parquet", ".json"])
def test_an_epoch_that_the_disk_refused_an_earlier_session_is_written_anew(
    open_log: OpenLog, disk: RefusingDisk, file: str
) -> None:
    log = open_log()
    disk.refuse(path_of(log.changes_folder.parent), file, times=2)
    with pytest.raises(StagingError, match="Input/output error"):
        log.begin_epoch(replace(EPOCH, epoch=2))
    assert disk.find_lost(path_of(log.changes_folder.parent))
    following = open_log()
    epoch = following.read_epoch()
    assert epoch == replace(EPOCH, epoch=2)
    following.read_staged(epoch)
    assert disk.find_lost(path_of(log.changes_folder.parent)) == []


@pytest.mark.parametrize("file", [".parquet", ".json"])
def test_a_relation_that_the_disk_refused_is_written_anew_when_it_is_tried_again(
    open_log: OpenLog, disk: RefusingDisk, file: str
) -> None:
    log = open_log()
    announced = [(make_relation("a"), Lsn(200))]
    disk.refuse(path_of(log.changes_folder.parent), file, times=2)
    with pytest.raises(StagingError):
        log.store_relations(announced, epoch=1)
    log.store_relations(announced, epoch=1)
    assert disk.find_lost(path_of(log.changes_folder.parent)) == []


def test_a_spooled_part_that_the_disk_refused_is_not_sealed_by_a_second_try(
    open_log: OpenLog, disk: RefusingDisk, tmp_path: Path
) -> None:
    log = open_log()
    log.remove_leftovers(EPOCH, Lsn(0))
    writer = log.open_spool()
    writer.write(make_changes(200, end_lsn=END_LSN_NOT_KNOWN))
    part = writer.finish()
    disk.refuse(tmp_path, ".parquet")
    with pytest.raises(OSError, match="Input/output error"):
        seal_part(part, Lsn(248))
    with pytest.raises(StagingError, match="expected one end LSN to fill in, found 0"):
        seal_part(part, Lsn(248))


def test_a_file_that_a_vacuum_took_keeps_no_commit_from_the_disk(
    open_log: OpenLog, tmp_path: Path
) -> None:
    log = open_log()
    log.begin_epoch(EPOCH)
    folder = tmp_path / "lake" / "staging" / "epochs"
    (file,) = folder.glob("*.parquet")
    file.unlink()
    make_durable(locate_lake(folder), above=-1, through=1)
    rewrite_commits(locate_lake(folder), above=-1, through=1)


@pytest.mark.parametrize("file", [".parquet", ".json"])
def test_a_row_of_a_ledger_that_the_disk_refused_is_written_anew(
    disk: RefusingDisk, tmp_path: Path, file: str
) -> None:
    folder, schema = tmp_path / "ledger", pa.schema([("said", pa.string()), ("number", pa.int64())])
    disk.refuse(folder, file)
    append_numbered(locate_lake(folder), [{"said": "done"}], schema)
    assert disk.find_lost(folder) == []


def test_old_reports_are_dropped_for_good_though_the_disk_refused_that(
    disk: RefusingDisk, tmp_path: Path
) -> None:
    ledger = MaintenanceLedger(locate_lake(tmp_path))
    folder, at = tmp_path / MAINTENANCE, datetime(2026, 1, 1, tzinfo=UTC)
    report = MaintenanceReport(at, 0, 1, 0, None, None, None, None, 0, 0, 0, 0, 0, 0, 0, ())
    for _ in range(3):
        ledger.record(report)
    disk.refuse(folder, "3.json", times=2)  # The commit of the rows that stay.
    with pytest.raises(StagingError, match="cannot write ledger/maintenance"):
        ledger.drop_old(at + timedelta(days=1))
    assert disk.find_lost(folder)
    ledger.record(report)
    assert disk.find_lost(folder) == []
    numbers = DeltaTable(folder).to_pyarrow_table()["number"].to_pylist()
    assert sorted(numbers) == [2, 4]


def test_a_checkpoint_of_the_log_that_the_disk_refused_is_written_anew(
    open_log: OpenLog, disk: RefusingDisk
) -> None:
    log = open_log()
    log.read_staged(EPOCH)
    disk.refuse(path_of(log.changes_folder), ".checkpoint.parquet")
    for at in count(200, 100):
        part = log.write_part(make_changes(at, end_lsn=at + 48))
        try:
            log.append([part], epoch=EPOCH, end_lsn=Lsn(at + 48))
        except StagingError:
            break
    assert disk.find_lost(path_of(log.changes_folder))
    assert log.has_landed([part])
    assert disk.find_lost(path_of(log.changes_folder)) == []


def test_a_copy_that_a_killed_rewrite_has_left_is_removed_by_a_later_one(
    open_log: OpenLog, tmp_path: Path
) -> None:
    open_log().begin_epoch(EPOCH)
    folder = tmp_path / "lake" / "staging" / "epochs"
    left, young = folder / ".a.parquet.1.new", folder / "_delta_log" / ".b.json.2.new"
    for copied in (left, young):
        copied.touch()
    os.utime(left, times=(1e9, 1e9))
    rewrite_commits(locate_lake(folder), above=-1, through=1)
    assert not left.exists()
    assert young.exists()
