"""A table whose commits go long before the data files that they removed, as the log's do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc_core.lake_storage.cleaning import Cleaned, ShortLog, clean_table
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.tombstones import Tombstones
from tests.lake_storage.test_cleaning import Mode, WrittenTable

# Seconds.
GRACE, COMMITS_KEPT = 3600, 600


class ShortTable:
    """A table that is cleaned as its clock goes on, and the files that each version had."""

    def __init__(self, folder: Path) -> None:
        self.table = WrittenTable(folder / "t")
        self.tombstones = Tombstones(LakePlace.of(folder / "tombstones.json"))
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
            short_log=ShortLog(int((now - COMMITS_KEPT) * 1e6), self.tombstones),
        )

    def list_needed(self) -> set[str]:
        """The files of the newest version and of those that were the newest one in the grace."""
        since = self.table.clock - GRACE
        needed = set(self.versions[-1][1])
        for (_, files), (ended, _) in zip(self.versions, self.versions[1:], strict=False):
            needed |= files if ended >= since else set()
        return needed


@pytest.mark.parametrize("seed", range(3))
def test_data_files_stay_for_the_grace_and_commits_do_not(tmp_path: Path, seed: int) -> None:
    chance, short = random.Random(seed), ShortTable(tmp_path)
    short.write([1, 2, 3], "error")
    for step in range(60):
        match chance.randrange(6):
            case 0 | 1:
                short.write([step, step + 100], "append")
            case 2 | 3:
                short.write([step], "overwrite")
            case 4:
                short.table.checkpoint()
            case _:
                short.table.clock += chance.choice([60, 900, 1800])
        if chance.random() < 0.5:
            short.table.checkpoint()
        if chance.random() < 0.4:
            assert short.clean().problem is None
            assert short.list_needed() <= short.table.list_data()
    short.table.checkpoint()
    short.table.clock += COMMITS_KEPT + 1
    short.write([7], "append")
    assert short.clean().problem is None
    assert short.table.list_data() == short.list_needed()
    commits = sorted((short.table.folder / "_delta_log").glob("*.json"))
    assert len(commits) <= 2
    assert short.table.read() == short.table.rows[short.table.newest]
    assert short.clean().removed.files == 0
    short.table.clock += 2 * GRACE
    short.write([8], "append")
    short.clean()
    assert short.table.list_data() == short.versions[-1][1]
    assert short.tombstones.place.read_text() == "{}"


def test_nothing_goes_if_the_tombstones_cannot_be_read(tmp_path: Path) -> None:
    short = ShortTable(tmp_path)
    short.write([1], "error")
    short.write([2], "overwrite")
    short.table.checkpoint()
    short.table.clock += 2 * GRACE
    short.write([3], "overwrite")
    short.tombstones.place.write_text('["part-1.parquet"]')
    before = {file.name for file in short.table.folder.rglob("*")}
    problem = short.clean().problem
    assert problem is not None
    assert f"{short.tombstones.place} is damaged" in problem
    assert {file.name for file in short.table.folder.rglob("*")} == before
