"""A target that is built again equals the living one, under the settings of now.

A kill is an exception here, at a named point: what is on the disk then is what a kill leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from cdc_core.settings import TableSettings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import TableMode
from spark_jobs.delta import committer
from spark_jobs.history.files import list_history_files
from spark_jobs.lake.lake import open_table
from spark_jobs.lake.ledger import find_cut, read_requests, read_states
from spark_jobs.merge import rebuilding
from spark_jobs.merge.rebuilding import choose_target, rebuild_target
from tests.spark.relations import delete, insert, make_relation, read, sweep, truncate, update
from tests.spark.small_lake import SmallLake

MODES = (TableMode.SOFT_DELETE, TableMode.HISTORY, TableMode.APPEND)
T = make_relation("t", "k int4, v text, n numeric")
TARGETS = [Target(T.table, kind) for kind in TargetKind]


class DiedError(Exception):
    """The rebuild ended where a kill could have ended it."""


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a lake whose tables are there in every form."""
    made = SmallLake(spark, tmp_path)
    made.lake = replace(made.lake, rules={"*.*": TableSettings(modes=MODES)})
    return made


def live(small: SmallLake) -> None:
    """Some rounds of all sorts of changes."""
    small.merge([insert(T, str(k), "a", "1.50") for k in range(6)])
    small.merge([update(T, "1", "b", None, unchanged=[2]), delete(T, "2", None, None)])
    (start,) = small.commit([insert(T, "7", "a", "NaN")])
    small.merge([read(T, "1", "b", "1.50"), read(T, "3", "x", None)], [sweep(T, start=start)])
    small.merge([truncate(T), insert(T, "1", "after", "2")], [insert(T, "2", "after", "3.25")])


def list_rows(small: SmallLake, target: Target) -> list[tuple[Any, ...]]:
    rows = small.spark.read.format("delta").load(small.lake.locate_target(target).uri)
    names = sorted(rows.columns)
    listed = rows.select(*(f"`{name}`" for name in names)).collect()
    return sorted(tuple(map(str, row)) for row in listed)


def rebuild(small: SmallLake, target: Target) -> None:
    rebuild_target(small.spark, small.lake, target, tell=lambda _: None, limits=small.limits)
    name = str(target)
    small.merge(tables=[name], rebuilt=[name], is_thorough=False)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_rebuilt_target_equals_the_living_one(small: SmallLake, target: Target) -> None:
    live(small)
    before, old_cut = list_rows(small, target), find_cut(small.lake)
    assert old_cut is not None
    rebuild(small, target)
    assert list_rows(small, target) == before
    cut, table = find_cut(small.lake), open_table(small.lake.locate_target(target))
    assert cut is not None
    assert table is not None
    assert cut.versions[str(target)] == table.version() == old_cut.versions[str(target)] + 1
    assert not (small.lake.locate_target(target) / "_rebuild").is_folder()
    if target.kind is TargetKind.HISTORY:
        files = list_history_files(table)
        assert not any(file.may_be_open and file.may_be_closed for file in files)
    small.merge([update(T, "1", "later", None, unchanged=[2]), delete(T, "2", None, None)])
    assert not read_requests(small.lake)
    assert (1, "later", False) in small.rows(T, "k", "v", "_deleted")


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_type_changes_without_the_source(small: SmallLake, target: Target) -> None:
    live(small)
    rules = TableSettings(modes=MODES, types={"n": "decimal(10,2)"})
    small.lake = replace(small.lake, rules={"*.*": rules})
    small.merge([insert(T, "9", "new", "7.5")])
    assert read_states(small.lake)["public.t"].state == "halted"
    rebuild(small, target)
    table = open_table(small.lake.locate_target(target))
    assert table is not None
    kinds = {field.name: str(field.type) for field in table.schema().fields}
    assert "decimal(10,2)" in kinds["n"]
    if target.kind is TargetKind.ROWS:
        assert read_states(small.lake)["public.t"].state == "streaming"
        assert [row[:2] for row in small.rows(T, "k", "n") if row[0] == 9] == [(9, 7.5)]
    small.merge([insert(T, "10", "new", "8.25")])
    assert any("8.25" in row for row in list_rows(small, target))


@pytest.mark.parametrize(
    "point",
    ["before_files_committed", "before_merge_commit", "after_merge_commit", "before_swap",
     "after_swap"],
)  # fmt: skip
def test_a_rebuild_that_dies_leaves_the_old_target_or_the_new_one(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    target = TARGETS[1]
    live(small)
    before = list_rows(small, target)

    def die(name: str) -> None:
        if name == point:
            raise DiedError

    with monkeypatch.context() as patched:
        patch_points(patched, die)
        with pytest.raises(DiedError):
            rebuild(small, target)
    assert list_rows(small, target) == before
    small.merge([update(T, "1", "later", None, unchanged=[2])])
    expected = list_rows(small, target)
    assert len(expected) == len(before) + 1
    rebuild(small, target)
    assert list_rows(small, target) == expected
    folder = small.lake.locate_target(target)
    assert pl.read_delta(folder.uri).height == len(expected)


def patch_points(patched: pytest.MonkeyPatch, die: Callable[[str], None]) -> None:
    from spark_jobs.merge import entry_merge, history_merge  # noqa: PLC0415

    for module in (rebuilding, committer, history_merge, entry_merge):
        patched.setattr(module, "reach", die)


def test_changes_that_are_merged_meanwhile_are_in_the_new_target(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(small)
    follow, times = rebuilding._Rebuild.follow, []

    def follow_late(self: Any, *arguments: Any) -> Any:
        times.append(1)
        if len(times) == 3:  # It has the lock of the target by now.
            return follow(self, *arguments)
        place = follow(self, *arguments)
        small.merge([insert(T, str(20 + len(times)), "meanwhile", "1")])
        return place

    monkeypatch.setattr(rebuilding._Rebuild, "follow", follow_late)
    rebuild(small, TARGETS[0])
    assert [row for row in small.rows(T, "k", "v") if row[1] == "meanwhile"] == [
        (21, "meanwhile"), (22, "meanwhile"),
    ]  # fmt: skip


def test_what_cannot_be_built_again_is_refused_and_stays(small: SmallLake) -> None:
    with pytest.raises(LakeError, match="the lake has no"):
        rebuild(small, TARGETS[0])
    live(small)
    with pytest.raises(LakeError, match="has no mode current: `modes` has soft_delete, history"):
        choose_target(small.lake, T.table, "current")
    before = list_rows(small, TARGETS[0])
    rules = TableSettings(modes=MODES, types={"v": "decimal(10,2)"})
    small.lake = replace(small.lake, rules={"*.*": rules})
    with pytest.raises(LakeError, match="which does not hold the values"):
        rebuild(small, TARGETS[0])
    assert list_rows(small, TARGETS[0]) == before
