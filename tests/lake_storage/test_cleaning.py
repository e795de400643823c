"""What a cleaning of a Delta table removes, judged by reading every version and by delta-rs."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from cdc_core.lake_storage.cleaning import clean_table
from cdc_core.lake_storage.delta_log import DeltaLog
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.place import LakePlace

Mode = Literal["error", "append", "overwrite"]
DAY_S = 86_400
# A cleaning removes what was written before this; newer files are young.
NOW_S = int(time.time()) - 10 * DAY_S
BEFORE_US = NOW_S * 1_000_000


@dataclass
class WrittenTable:
    """A table, the rows that each of its versions had, and the times of its files."""

    folder: Path
    rows: dict[int, list[int]] = field(default_factory=dict)
    # Seconds since 1970. Each commit is a moment later than the one before.
    clock: float = NOW_S - 2 * DAY_S

    @property
    def place(self) -> LakePlace:
        return LocalPlace.of(self.folder)

    @property
    def newest(self) -> int:
        return max(self.rows)

    @property
    def committed_s(self) -> float:
        """When the newest commit was written."""
        return (self.folder / "_delta_log" / f"{self.newest:020}.json").stat().st_mtime

    def write(self, values: list[int], mode: Mode) -> None:
        before = self._list_files()
        table = pa.table({"a": pa.array(values, pa.int64())})
        if mode == "overwrite":
            write_deltalake(self.folder, table, mode="overwrite")
        else:
            write_deltalake(self.folder, table, mode=mode)
        self._date(before)

    def delete(self, value: int) -> None:
        before = self._list_files()
        DeltaTable(self.folder).delete(f"a = {value}")
        self._date(before)

    def checkpoint(self) -> None:
        before = self._list_files()
        DeltaTable(self.folder).create_checkpoint()
        self._date(before)

    def read(self, version: int | None = None) -> list[int]:
        found = DeltaTable(self.folder, version=version).to_pyarrow_table()
        return sorted(found["a"].to_pylist())

    def list_data(self) -> set[str]:
        return {file.name for file in self.folder.glob("*.parquet")}

    def list_recent(self) -> set[int]:
        """The versions that were the newest one when something young was committed."""
        commits = self.folder / "_delta_log"
        return {
            int(file.stem) - 1 for file in commits.glob("*.json") if file.stat().st_mtime >= NOW_S
        }

    def list_deletable(self, needed: set[int]) -> set[str]:
        """The old files that delta-rs would remove, if it kept some versions."""
        log = DeltaLog.list(self.place)
        found = DeltaTable(self.folder).vacuum(
            retention_hours=0,
            enforce_retention_duration=False,
            full=True,
            keep_versions=sorted(v for v in needed if log.list_commits(v) is not None),
        )
        # delta-rs also lists files that are gone.
        files = {file for file in map(self.folder.joinpath, found) if file.exists()}
        return {file.name for file in files if file.stat().st_mtime < NOW_S}

    def write_orphan(self, name: str, written_s: float) -> Path:
        """Write a data file that no commit names."""
        file = self.folder / name
        file.write_bytes(b"crashed")
        os.utime(file, (written_s, written_s))
        return file

    def _date(self, before: set[Path]) -> None:
        """Give what was just written the time of this clock; note the rows of the version."""
        self.clock += 60
        for file in self._list_files() - before:
            os.utime(file, (self.clock, self.clock))
        table = DeltaTable(self.folder)
        self.rows[table.version()] = sorted(table.to_pyarrow_table()["a"].to_pylist())

    def _list_files(self) -> set[Path]:
        return {file for file in self.folder.rglob("*") if file.is_file()}


def write_history(folder: Path, seed: int, steps: int = 24) -> WrittenTable:
    """Write a random history, of which some versions are old and some are within the grace."""
    chance = random.Random(seed)
    table = WrittenTable(folder)
    table.write([1, 2, 3], "error")
    for step in range(steps):
        match chance.randrange(6):
            case 0 | 1:
                table.write([chance.randrange(9), step], "append")
            case 2 | 3:
                table.write([step, chance.randrange(9)], "overwrite")
            case 4:
                table.delete(chance.randrange(9))
            case _:
                table.checkpoint()
        if chance.random() < 0.05:
            table.clock += DAY_S  # Now and then the rest is young.
    return table


@pytest.mark.parametrize("seed", range(3))
def test_every_needed_version_reads_as_before_and_nothing_else_stays(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    table = write_history(tmp_path / "t", seed)
    readable = set(table.rows)
    for turn in range(3):  # More and more versions are dropped.
        named = set(chance.sample(sorted(readable), min(4, len(readable))))
        needed = named | table.list_recent() | {table.newest}
        orphan = table.write_orphan(f"part-{turn}.parquet", min(NOW_S, table.committed_s) - 1)
        in_flight = table.write_orphan(f"part-{turn}-now.parquet", NOW_S)
        deletable = table.list_deletable(needed)
        before = table.list_data()
        cleaned = clean_table(table.place, named=named, before_us=BEFORE_US)
        assert cleaned.problem is None
        assert before - table.list_data() == deletable
        assert not orphan.exists()
        assert in_flight.exists()
        readable &= needed
        for version in readable:
            assert table.read(version) == table.rows[version]
        assert clean_table(table.place, named=named, before_us=BEFORE_US).removed.files == 0
        table.write([77], "append")
        readable.add(table.newest)
        assert table.read() == sorted([*table.rows[table.newest - 1], 77])


def test_the_log_of_a_table_that_nobody_reads_as_it_was_is_short(tmp_path: Path) -> None:
    table = WrittenTable(tmp_path / "t")
    table.write([0], "error")
    for step in range(60):
        table.write([step], "overwrite")
        if step % 10 == 9:
            table.checkpoint()
    clean_table(table.place, named={33}, before_us=BEFORE_US)
    commits = sorted(int(file.stem) for file in (table.folder / "_delta_log").glob("*.json"))
    assert commits == [30, 31, 32, 33, 60]
    assert (table.read(33), table.read()) == ([32], [59])
    assert len(table.list_data()) == 2


def test_an_idle_table_keeps_the_version_that_an_old_cut_names(tmp_path: Path) -> None:
    """History 25: its version is far older than any retention, and no commit follows."""
    table = WrittenTable(tmp_path / "t")
    table.write([1], "error")
    table.write([2], "append")
    assert clean_table(table.place, named={0, 1}, before_us=BEFORE_US).removed.files == 0
    table.clock = NOW_S + DAY_S
    table.write([3], "overwrite")
    assert clean_table(table.place, named={1}, before_us=BEFORE_US).removed.files == 0
    assert (table.read(1), table.read()) == ([1, 2], [3])


@pytest.mark.parametrize("damage", ["no log", "torn commit", "missing commit", "two-part"])
def test_nothing_is_removed_from_a_table_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    table = WrittenTable(tmp_path / "t")
    for step in range(4):
        table.write([step], "overwrite" if step else "error")
    log = table.folder / "_delta_log"
    match damage:
        case "no log":
            shutil.rmtree(log)
        case "torn commit":
            (log / f"{3:020}.json").write_text('{"add": {"pa')
        case "missing commit":
            (log / f"{2:020}.json").unlink()
        case _:
            (log / f"{3:020}.checkpoint.0000000001.0000000002.parquet").write_bytes(b"")
    before = table.list_data()
    cleaned = clean_table(table.place, named=(), before_us=BEFORE_US)
    assert cleaned.problem is not None
    assert str(table.folder) in cleaned.problem
    assert table.list_data() == before


@pytest.mark.parametrize("name", ["checkpoint.parquet#1", "json#7"])
def test_what_a_killed_commit_left_goes(tmp_path: Path, name: str) -> None:
    """delta-rs writes a file of the log under another name, and then renames it."""
    table = WrittenTable(tmp_path / "t")
    for step in range(4):
        table.write([step], "overwrite" if step else "error")
    left = table.folder / "_delta_log" / f"{3:020}.{name}"
    left.write_bytes(b"torn")
    assert clean_table(table.place, named=(), before_us=BEFORE_US).problem is None
    assert left.exists(), "it may be of a commit that runs"
    os.utime(left, (NOW_S - 1, NOW_S - 1))
    assert clean_table(table.place, named=(), before_us=BEFORE_US).problem is None
    assert not left.exists()
    assert table.read() == [3]


def test_what_is_committed_while_the_lock_is_waited_for_stays(tmp_path: Path) -> None:
    """A merge may have written its file long before it commits it."""
    table = WrittenTable(tmp_path / "t")
    table.write([1], "error")
    table.write([2], "append")
    (first, *_) = sorted(table.folder.glob("*.parquet"))
    written = table.write_orphan("part-merged.parquet", table.clock - 3600)
    shutil.copyfile(first, written)
    os.utime(written, (table.clock - 3600, table.clock - 3600))

    @contextmanager
    def lock() -> Iterator[None]:
        opened = DeltaTable(table.folder)
        add = AddAction(
            path=written.name,
            size=written.stat().st_size,
            partition_values={},
            modification_time=1,
            data_change=True,
            stats='{"numRecords":1}',
        )
        opened.create_write_transaction([add], "append", opened.schema())
        yield

    clean_table(table.place, named=(), before_us=BEFORE_US, lock=lock)
    assert len(table.read()) == 3


def test_a_file_of_a_writer_that_was_only_paused_stays_until_its_commit_would_be_refused(
    tmp_path: Path,
) -> None:
    table = WrittenTable(tmp_path / "t")
    table.write([1], "error")
    paused = table.write_orphan("part-paused.parquet", table.clock + 1)
    clean_table(table.place, named=(), before_us=BEFORE_US)
    assert paused.exists()
    # Its commit names the version that it extends, so this one refuses it.
    table.write([2], "append")
    clean_table(table.place, named=(), before_us=BEFORE_US)
    assert not paused.exists()
