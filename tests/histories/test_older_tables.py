"""Histories in which a table is older than the cut that names it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError, MergeError, Retry
from cdc_core.lake_storage import durability
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Lsn
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import find_cut, queue_tables, read_requests, read_states, write_cut
from spark_jobs.merge import rounds
from spark_jobs.query.sql import answer_query
from tests.lakes import locate_lake, path_of
from tests.refusing_disk import RefusingDisk
from tests.spark.relations import Entry, insert, make_relation, update
from tests.spark.small_lake import SmallLake

T, OTHER = make_relation("t", "k int4, v text"), make_relation("other", "k int4")
WHOLE = [(1, "a"), (2, "c"), (3, "b")]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Three merged transactions of a table, and a copy of its folder after the second."""
    small = SmallLake(spark, tmp_path)
    small.merge([insert(T, "1", "a"), insert(T, "2", "a"), insert(OTHER, "1")])
    small.merge([insert(T, "3", "b")])
    shutil.copytree(path_of(small.lake.locate(T.table)), tmp_path / "copy")
    small.merge([update(T, "2", "c")])
    assert small.rows(T) == WHOLE
    return small


def delete_folder(lake: SmallLake) -> None:
    shutil.rmtree(path_of(lake.lake.locate(T.table)))


def restore_copy(lake: SmallLake) -> None:
    delete_folder(lake)
    shutil.copytree(path_of(lake.lake.root.parent / "copy"), path_of(lake.lake.locate(T.table)))


def restore_copy_and_write_on(lake: SmallLake) -> None:
    """Somebody restores the table, and changes its properties: its version is high enough."""
    restore_copy(lake)
    table = DeltaTable(path_of(lake.lake.locate(T.table)))
    for number in range(3):
        table.alter.set_table_properties({"delta.logRetentionDuration": f"interval {number} days"})


def lose_newest_commit(lake: SmallLake) -> None:
    """What a power failure leaves of a commit that was not forced to the disk."""
    (newest,) = sorted(path_of(lake.lake.locate(T.table) / "_delta_log").glob("*.json"))[-1:]
    newest.unlink()


CASES = [delete_folder, restore_copy, restore_copy_and_write_on, lose_newest_commit]
MORE: dict[str, list[Entry]] = {
    "idle": [insert(OTHER, "2")],
    "changed": [insert(OTHER, "2"), insert(T, "4", "d")],
}


@pytest.mark.parametrize("happen", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("more", MORE)
def test_a_table_older_than_its_cut_is_noticed_and_built_again_from_the_log(
    lake: SmallLake, happen: Callable[[SmallLake], None], more: str
) -> None:
    happen(lake)
    cut = find_cut(lake.lake)
    assert cut is not None
    with pytest.raises(LakeError, match=r"of public\.t, which a cut names, is gone"):
        answer_query(lake.spark, lake.lake, "select * from t", cut.bound)
    lake.merge(MORE[more])
    assert lake.rows(T) == (WHOLE if more == "idle" else [*WHOLE, (4, "d")])
    newest = find_cut(lake.lake)
    assert newest is not None
    assert newest.merged["public.t"] == newest.bound
    assert newest.versions["public.t"] == lake.version(T)
    assert not read_requests(lake.lake), "the log has all that is needed"
    assert lake.merge() == []


@pytest.mark.parametrize("happen", CASES, ids=lambda case: case.__name__)
def test_a_table_older_than_its_cut_is_built_again_when_nothing_else_happens(
    lake: SmallLake, happen: Callable[[SmallLake], None]
) -> None:
    happen(lake)
    lake.merge()
    assert lake.rows(T) == WHOLE


def test_a_table_that_is_older_in_mid_run_is_noticed_by_the_next_round(lake: SmallLake) -> None:
    ends = [lake.commit([insert(OTHER, str(k))])[0] for k in (2, 3)]
    happenings = [delete_folder]
    rounds_done = lake.merge(
        round_rows=1, on_round=lambda _: happenings.pop()(lake) if happenings else None
    )
    assert [done.cut.lsn for done in rounds_done][:1] == ends[:1]
    assert "public.t" in rounds_done[1].tables


def test_an_older_cut_does_not_read_what_took_the_place_of_its_version(lake: SmallLake) -> None:
    cut = find_cut(lake.lake)
    assert cut is not None
    restore_copy(lake)
    lake.merge([insert(T, "4", "d")])
    with pytest.raises(LakeError, match=r"of public\.t, which a cut names, is gone"):
        lake.at(T, cut.bound.lsn)


def test_a_table_whose_log_lacks_changes_is_partial_until_it_is_read_whole(
    lake: SmallLake, caplog: pytest.LogCaptureFixture
) -> None:
    kept = find_cut(lake.lake)
    assert kept is not None
    delete_folder(lake)
    (end,) = lake.commit([insert(T, "4", "d")])
    DeltaTable(path_of(lake.lake.changes)).delete(f"end_lsn <= {int(kept.bound.lsn)}")
    with caplog.at_level(logging.WARNING, "walgate.merge"):
        lake.merge()
    assert "table is older than its cut" in caplog.text
    (request,) = read_requests(lake.lake)
    assert request.since == Bound(1, Lsn(end))
    assert "its folder is gone" in request.reason
    lack = read_completeness(lake.lake).find_incomplete("public.t")
    assert lack is not None
    assert lack.reason == request.reason
    cut = find_cut(lake.lake)
    assert cut is not None
    assert "public.t" in cut.partial
    assert read_states(lake.lake)["public.t"].state == "streaming"


def test_a_halted_table_whose_folder_is_gone_is_read_whole(lake: SmallLake) -> None:
    dropped = make_relation("t", "k int4")
    lake.merge([insert(dropped, "5")])
    delete_folder(lake)
    lake.merge()
    assert [row[0] for row in lake.rows(dropped)] == [5]
    (request,) = read_requests(lake.lake)
    assert read_completeness(lake.lake).find_incomplete("public.t") is not None
    assert request.since < Bound(1, Lsn(lake.log.lsn))


def test_what_a_cut_names_is_on_the_disk_before_the_cut(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallLake(spark, tmp_path)
    synced: list[LakePlace] = []
    at_cut: list[list[LakePlace]] = []
    sync_place = LocalPlace.sync

    def sync(place: LocalPlace) -> None:
        sync_place(place)
        synced.append(place)

    def write(*told: Any) -> None:
        at_cut.append([*synced])
        write_cut(*told)

    monkeypatch.setattr(LocalPlace, "sync", sync)
    monkeypatch.setattr(rounds, "write_cut", write)
    small.merge([insert(T, "1", "a")])
    folder = small.lake.locate(T.table)
    log = folder / "_delta_log"
    needed = {folder, log, *log.list_matching("*.json"), *folder.list_matching("*.parquet")}
    assert needed <= {*at_cut[0]}


@pytest.mark.parametrize("file", [".parquet", ".json"])
def test_what_the_disk_refuses_once_is_written_anew_before_the_cut(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    small = SmallLake(spark, tmp_path)
    disk = RefusingDisk(monkeypatch)
    folder = small.lake.locate(T.table)
    disk.refuse(path_of(folder), file)
    small.merge([insert(T, "1", "a")])
    assert disk.find_lost(path_of(folder)) == []
    assert find_cut(small.lake) is not None


@pytest.mark.parametrize("file", [".parquet", ".json"])
def test_a_disk_that_takes_no_file_writes_no_cut_and_the_next_merge_writes_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    small = SmallLake(spark, tmp_path)
    folder = small.lake.locate(T.table)
    disk = RefusingDisk(monkeypatch)
    disk.refuse(path_of(folder), file, times=2)
    with pytest.raises(MergeError, match=r"refused the files of .*: Input/output") as caught:
        small.merge([insert(T, "1", "a")])
    assert caught.value.retry is Retry.AFTER_FIX
    assert find_cut(small.lake) is None
    is_committed = file == ".json"
    is_left = bool(disk.find_lost(path_of(folder)))
    assert is_left == is_committed, "no file is left that no commit names"
    small.merge()
    assert find_cut(small.lake) is not None
    assert disk.find_lost(path_of(folder)) == []


@pytest.mark.parametrize("file", [".parquet", ".json"])
def test_a_cut_that_the_disk_refused_twice_is_written_anew_before_it_is_believed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    small = SmallLake(spark, tmp_path)
    disk = RefusingDisk(monkeypatch)
    disk.refuse(path_of(small.lake.cuts), file, times=2)
    with pytest.raises(MergeError, match=r"refused the files of .*: Input/output"):
        small.merge([insert(T, "1", "a")])
    assert disk.find_lost(path_of(small.lake.cuts))
    small.merge()
    assert disk.find_lost(path_of(small.lake.cuts)) == []


def test_a_request_that_the_disk_refused_twice_is_written_anew_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(locate_lake(tmp_path))
    disk = RefusingDisk(monkeypatch)
    disk.refuse(path_of(lake.states), ".json", times=2)
    with pytest.raises(MergeError, match="the storage refused"):
        queue_tables(lake, [T.table], reason="asked", since=Bound(1, Lsn(1)))
    queue_tables(lake, [OTHER.table], reason="asked", since=Bound(1, Lsn(2)))
    assert disk.find_lost(path_of(lake.states)) == []
    assert len(read_requests(lake)) == 2


def test_the_file_of_a_deletion_vector_is_found_by_its_name(tmp_path: Path) -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    log = tmp_path / "_delta_log"
    log.mkdir()
    line = json.dumps({"add": {"path": "part.parquet", "deletionVector": vector}})
    (log / f"{0:020}.json").write_text(line, encoding="utf-8")
    files = durability._list_files(LocalPlace.of(tmp_path), LocalPlace.of(log), range(1))
    found = [*map(path_of, files)]
    assert tmp_path / "ab" / name in found
