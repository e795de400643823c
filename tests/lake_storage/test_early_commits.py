"""A table whose commits go long before the data files that they removed, as the log's do."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc_core.lake_storage.cleaning import Cleaned, EarlyCommits, clean_table
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.tombstones import Tombstones
from tests.lake_storage.test_cleaning import Mode, WrittenTable

# Seconds.
GRACE, COMMIT_LIFE = 3600, 600


class EarlyTable:
    """A table that is cleaned as its clock goes on, and the files that each version had."""

    def __init__(self, folder: Path) -> None:
        self.table = WrittenTable(folder / "t")
        self.tombstones = Tombstones(self.table.place)
        # The data files of each version, and when it became the newest one.
        self.versions: list[tuple[float, set[str]]] = []

    def write(self, values: list[int], mode: Mode) -> None:
        """Write a version, and note its files."""
        self.table.write(values, mode)
        paths = {Path(uri).name for uri in DeltaTable(self.table.folder).file_uris()}
        self.versions.append((self.table.committed_s, paths))

    def clean(self) -> Cleaned:
        """Clean the table as of its clock."""
        now = self.table.clock
        return clean_table(
            self.table.place,
            named=(),
            before_us=int((now - GRACE) * 1e6),
            early=EarlyCommits(int((now - COMMIT_LIFE) * 1e6), self.tombstones),
        )

    def list_needed(self) -> set[str]:
        """The files of the newest version and of those that were the newest one in the grace."""
        since = self.table.clock - GRACE
        needed = set(self.versions[-1][1])
        for (_, files), (ended, _) in zip(self.versions, self.versions[1:], strict=False):
            needed |= files if ended >= since else set()
        return needed


def write_two_versions(folder: Path) -> EarlyTable:
    """A table that has lost its first file, with a checkpoint of its newest version."""
    early = EarlyTable(folder)
    early.write([1], "error")
    early.write([2], "overwrite")
    early.table.checkpoint()
    return early


@pytest.mark.parametrize("seed", range(3))
def test_data_files_stay_for_the_grace_and_commits_do_not(tmp_path: Path, seed: int) -> None:
    chance, early = random.Random(seed), EarlyTable(tmp_path)
    early.write([1, 2, 3], "error")
    for step in range(60):
        match chance.randrange(6):
            case 0 | 1:
                early.write([step, step + 100], "append")
            case 2 | 3:
                early.write([step], "overwrite")
            case 4:
                early.table.checkpoint()
            case _:
                early.table.clock += chance.choice([60, 900, 1800])
        if chance.random() < 0.5:
            early.table.checkpoint()
        if chance.random() < 0.4:
            assert early.clean().problem is None
            assert early.list_needed() <= early.table.list_data()
    early.table.checkpoint()
    early.table.clock += COMMIT_LIFE + 1
    early.write([7], "append")
    assert early.clean().problem is None
    assert early.table.list_data() == early.list_needed()
    commits = sorted((early.table.folder / "_delta_log").glob("*.json"))
    assert len(commits) <= 2
    assert early.table.read() == early.table.rows[early.table.newest]
    assert early.clean().removed.files == 0
    early.table.clock += 2 * GRACE
    early.write([8], "append")
    early.clean()
    assert early.table.list_data() == early.versions[-1][1]
    assert early.tombstones.place.read_text() == "{}"


def test_a_full_disk_gets_room_before_the_tombstones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = write_two_versions(tmp_path)
    early.table.clock += 2 * GRACE
    early.write([3], "overwrite")
    early.table.checkpoint()
    early.table.clock += COMMIT_LIFE + 1
    early.write([4], "overwrite")

    def refuse(_: LakePlace, __: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "write_text", refuse)
        problem = early.clean().problem
    assert problem is not None
    assert "No space left" in problem
    assert early.table.list_data() == early.list_needed()
    assert len(list((early.table.folder / "_delta_log").glob("*.json"))) == 4
    assert early.clean().problem is None
    assert len(list((early.table.folder / "_delta_log").glob("*.json"))) == 2


def test_an_old_file_of_tombstones_in_the_place_of_a_newer_one_takes_nothing(
    tmp_path: Path,
) -> None:
    """A session of capture that lost its slot was paused while it wrote its tombstones."""
    early = EarlyTable(tmp_path)
    early.write([1], "error")
    early.table.clock += GRACE - 600
    for value in (2, 3):
        early.write([value], "overwrite")
    early.table.checkpoint()
    early.table.clock += COMMIT_LIFE + 1
    early.write([4], "overwrite")
    early.clean()
    # The first file is older than the grace. Only its tombstone says when the table lost it.
    assert not (early.table.folder / "_delta_log" / f"{1:020}.json").exists()
    early.tombstones.place.write_text("{}")
    early.clean()
    assert early.list_needed() <= early.table.list_data()
    assert len(json.loads(early.tombstones.place.read_text())) == 3


def test_nothing_goes_if_the_tombstones_cannot_be_read(tmp_path: Path) -> None:
    early = write_two_versions(tmp_path)
    early.table.clock += 2 * GRACE
    early.write([3], "overwrite")
    early.tombstones.place.write_text('["part-1.parquet"]')
    before = {file.name for file in early.table.folder.rglob("*")}
    problem = early.clean().problem
    assert problem is not None
    assert f"{early.tombstones.place} is damaged" in problem
    assert {file.name for file in early.table.folder.rglob("*")} == before
