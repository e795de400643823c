"""Histories in which the files of one table are damaged, as by a power failure or a person."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError, MergeError
from cdc_core.settings import Settings, load_settings
from orchestration.assembly import build_definitions
from orchestration.backfill.missing_values import HoleReader
from orchestration.status.status import read_status
from spark_jobs.lake.leases import holding_lease
from spark_jobs.lake.ledger import find_cut, read_requests
from spark_jobs.merge import rounds
from spark_jobs.merge.targets import TableRound, merge_targets
from spark_jobs.query.as_of import table_at
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import path_of
from tests.spark.relations import Entry, insert, make_relation, read, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake
from tests.spark.table_files import APART

T, OTHER = make_relation("t", "k int4, v text"), make_relation("u", "k int4")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Three merged transactions of a table, beside another table."""
    small = SmallLake(spark, tmp_path)
    small.merge([insert(T, "1", "a"), insert(OTHER, "1")])
    for k in ("2", "3"):
        small.merge([insert(T, k, "a")])
    return small


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Lend the settings of that lake; its source is down."""
    file = tmp_path / "walgate.toml"
    file.write_text('[source]\ndsn = "host=/nowhere dbname=x user=w"\n[lake]\nroot = "lake"\n')
    return load_settings(file, {})


def list_commits(lake: SmallLake) -> list[Path]:
    return sorted(path_of(lake.lake.locate(T.table) / "_delta_log").glob("*.json"))


def lose_bytes(lake: SmallLake) -> None:
    """What a power failure leaves of a file whose name alone was on the disk."""
    newest = list_commits(lake)[-1]
    newest.write_bytes(bytes(newest.stat().st_size))


def tear(lake: SmallLake) -> None:
    newest = list_commits(lake)[-1]
    newest.write_bytes(newest.read_bytes()[:-40])


def leave_a_gap(lake: SmallLake) -> None:
    """Somebody restores a folder, and not all of it."""
    list_commits(lake)[-2].unlink()


CASES = [lose_bytes, tear, leave_a_gap]


@pytest.mark.parametrize("happen", CASES, ids=lambda case: case.__name__)
def test_a_table_whose_log_cannot_be_opened_fails_alone_until_its_folder_is_deleted(
    lake: SmallLake, happen: Callable[[SmallLake], None]
) -> None:
    happen(lake)
    folder = lake.lake.locate(T.table)
    lake.commit([insert(T, "4", "b"), insert(OTHER, "4")])
    for _ in range(2):
        with pytest.raises(MergeError, match=r"public\.t: .*cannot be opened") as caught:
            lake.merge()
        assert f"delete {folder}, then run `walgate merge`" in str(caught.value)
    assert lake.rows(OTHER) == [(1,), (4,)]
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.merged["public.t"] < cut.merged["public.u"] == cut.bound
    shutil.rmtree(path_of(folder))
    lake.merge()
    assert lake.rows(T) == [(1, "a"), (2, "a"), (3, "a"), (4, "b")]
    assert not read_requests(lake.lake), "the log has all that is needed"


def test_a_table_whose_log_cannot_be_opened_is_read_whole_where_the_log_is_short(
    lake: SmallLake,
) -> None:
    kept = find_cut(lake.lake)
    assert kept is not None
    lose_bytes(lake)
    lake.commit([insert(T, "4", "b")])
    DeltaTable(path_of(lake.lake.changes)).delete(f"end_lsn <= {int(kept.bound.lsn)}")
    shutil.rmtree(path_of(lake.lake.locate(T.table)))
    lake.merge()
    assert lake.rows(T) == [(4, "b")]
    assert len(read_requests(lake.lake)) == 1


@pytest.mark.parametrize("happen", CASES, ids=lambda case: case.__name__)
def test_a_table_whose_log_cannot_be_opened_is_named_and_keeps_nothing_from_loading(
    lake: SmallLake, settings: Settings, happen: Callable[[SmallLake], None]
) -> None:
    cut = find_cut(lake.lake)
    assert cut is not None
    happen(lake)
    build_definitions(settings)
    answer = read_status(settings)
    states = {table["table"]: table["state"] for table in answer["tables"]}
    assert states == {"public.t": "halted", "public.u": "queued"}
    (problem,) = [one for one in answer["problems"] if one["code"] == "table_damaged"]
    assert "public.t" in problem["what"]
    assert str(lake.lake.locate(T.table)) in problem["fix"]
    assert "lake_down" not in {one["code"] for one in answer["problems"]}
    assert "cannot be opened" in HoleReader(settings).read().left[T.table]
    with (
        holding_lease(lake.lake, cut.bound) as lease,
        pytest.raises(LakeError, match="cannot be opened"),
    ):
        table_at(lake.spark, lake.lake, T.table, cut.bound, lease_of_newest=lease)


class PowerCut(BaseException):
    """Ends a merge where it is, as far as this process can."""


class Disk:
    """A disk that has what was forced to it, and of all else the names alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the system's fsync."""
        self._fsync = os.fsync
        self._forced = set[int]()
        # By name: a new file may get the inode of one that was removed.
        self.times: Counter[str] = Counter()
        monkeypatch.setattr(os, "fsync", self._force)

    def has(self, file: Path) -> bool:
        return file.stat().st_ino in self._forced

    def lose_power(self, table: Path) -> None:
        """Leave the data files of a table as they are after the power came back."""
        for file in (*table.glob("*.parquet"), *table.glob("*.bin")):
            if not self.has(file):
                file.write_bytes(bytes(file.stat().st_size))

    def _force(self, descriptor: int) -> None:
        self._fsync(descriptor)
        self._forced.add(os.fstat(descriptor).st_ino)
        self.times[Path(f"/proc/self/fd/{descriptor}").readlink().name] += 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def cut_power(
    lake: SmallLake, entries: list[Entry], patch: pytest.MonkeyPatch
) -> dict[str, TableRound]:
    """Merge, and lose the power after the tables' commits and before the cut."""
    done: dict[str, TableRound] = {}

    def keep(*arguments: Any, **options: Any) -> dict[str, TableRound]:
        done.update(merge_targets(*arguments, **options))
        return done

    def reach(point: str) -> None:
        if point == "before_cut":
            raise PowerCut

    with patch.context() as context, suppress(PowerCut):
        context.setattr(rounds, "merge_targets", keep)
        context.setattr(rounds, "reach", reach)
        lake.merge(entries)
    return done


CHANGES = [update(T, "2", "b"), insert(T, "4", "b")]
READS = [read(T, "4", "b"), read(T, "5", "b")]
WAYS: dict[str, tuple[MergeLimits, WritePlan, list[Entry]]] = {
    "by_arrow": (DEFAULT_LIMITS, WritePlan.REWRITE_FILES, CHANGES),
    "by_arrow_apart": (APART, WritePlan.REWRITE_FILES, CHANGES),
    "rewritten": (SPARK_ONLY, WritePlan.REWRITE, CHANGES),
    "merged": (MERGE_ONLY, WritePlan.MERGE, CHANGES),
    "added": (replace(MERGE_ONLY, unshared_reads=1), WritePlan.APPEND, READS),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_that_was_committed_before_the_power_failed_is_whole(
    disk: Disk, lake: SmallLake, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    lake.limits, plan, changes = WAYS[way]
    folder = lake.lake.locate(T.table)
    before = {*path_of(folder).glob("*.parquet")}
    merged = cut_power(lake, [*changes, insert(OTHER, "2")], monkeypatch)["public.t"].merged
    assert merged is not None
    assert merged.way is plan
    added = {*path_of(folder).glob("*.parquet")} - before
    assert added
    assert {disk.times[file.name] for file in added} == {1}, "each is forced once"
    disk.lose_power(path_of(folder))
    lake.merge()
    kept = 3 if way == "added" else 2
    assert len([row for row in lake.rows(T) if row[1] == "a"]) == kept
    assert len([row for row in lake.rows(T) if row[1] == "b"]) == 2
    assert lake.rows(OTHER) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("limits", "way"),
    [(DEFAULT_LIMITS, WritePlan.REWRITE_FILES), (SPARK_ONLY, WritePlan.REWRITE)],
    ids=["by_arrow", "rewritten"],
)
def test_a_commit_names_no_file_that_is_not_on_the_disk(
    lake: SmallLake,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    limits: MergeLimits,
    way: WritePlan,
) -> None:
    folder, is_forced = lake.lake.locate(T.table), list[bool]()
    commit = DeltaTable.create_write_transaction

    def check(self: DeltaTable, actions: list[Any], *arguments: Any, **more: Any) -> None:
        added = [action for action in actions if isinstance(action, AddAction)]
        assert added
        is_forced.extend(disk.has(path_of(folder / action.path)) for action in added)
        is_forced.append(disk.has(path_of(folder)))
        commit(self, actions, *arguments, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", check)
    (done,) = lake.merge([insert(T, "4", "b")], limits=limits)
    assert done.tables["public.t"].way is way
    assert len(is_forced) > 1
    assert all(is_forced)


def lose_file(file: Path) -> None:
    file.unlink()


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def blank(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("damage", [lose_file, cut_short, blank], ids=lambda case: case.__name__)
def test_a_table_whose_newest_files_are_torn_is_built_again_once_its_folder_is_deleted(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    folder = lake.lake.locate(T.table)
    before = {*path_of(folder).glob("*.parquet")}
    cut_power(lake, [insert(T, "4", "b"), insert(OTHER, "2")], monkeypatch)
    (newest,) = {*path_of(folder).glob("*.parquet")} - before
    damage(newest)
    lake.commit([insert(T, "5", "b"), insert(OTHER, "3")])
    for _ in range(2):
        with pytest.raises(MergeError, match=rf"public\.t: .*{newest.name}") as caught:
            lake.merge()
        assert f"delete {folder}, then run `walgate merge`" in str(caught.value)
    assert lake.rows(OTHER) == [(1,), (2,), (3,)]
    shutil.rmtree(path_of(folder))
    lake.merge()
    assert lake.rows(T) == [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b")]
    assert not read_requests(lake.lake), "the log has all that is needed"
