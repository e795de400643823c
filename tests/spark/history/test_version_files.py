"""Closed versions are in files of their own, whatever dies and whoever else writes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from cdc_core.errors import MergeError
from spark_jobs.lake.ledger import read_states
from spark_jobs.maintenance.maintenance import maintain
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.merge import history_merge
from tests.spark.history.versions import (
    NAME,
    VERSIONS,
    T,
    closed_files,
    list_versions,
    open_history,
)
from tests.spark.log_writer import EPOCH_START
from tests.spark.relations import (
    delete,
    insert,
    make_relation,
    read,
    update,
)
from tests.spark.small_lake import SmallLake


def test_a_merge_reads_no_file_of_closed_versions(small: SmallLake) -> None:
    small.merge([insert(T, str(k), "a", None) for k in range(5)])
    small.merge([update(T, "1", "b", None)])
    before = closed_files(small)
    assert before
    small.merge([update(T, "1", "c", None), update(T, "2", "b", None)])
    small.merge([read(T, "1", "c", None), delete(T, "3", None, None)])
    assert before < closed_files(small), "they stay as they are"


def test_holes_are_filled_in_files_with_open_and_closed_versions(small: SmallLake) -> None:
    small.merge([update(T, "1", "a", None, unchanged=[2]), insert(T, "2", "a", None)])
    small.merge([update(T, "1", "b", None, unchanged=[2])])
    DeltaTable(small.lake.locate_target(VERSIONS).uri).optimize.compact()
    small.merge([read(T, "1", "b", "found")])
    assert [row[:4] for row in list_versions(small, "k", "v", "big", "_holes")] == [
        (1, "a", "found", None), (1, "b", "found", None), (2, "a", None, None),
    ]  # fmt: skip


def test_a_merge_that_died_after_it_added_columns_is_finished_by_the_next(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([insert(T, "1", "a", None), insert(T, "2", "a", None)])
    default = {"missing_value": "7", "has_default": True}
    wider = make_relation("t", "k int4, v text, big text, n int4")
    widest = make_relation("t", "k int4, v text, big text, n int4, m int4", m=default)

    def die(_: str) -> None:
        raise OSError("the disk is full")

    for changed in (update(wider, "1", "n", None, "1"), update(widest, "1", "m", None, "1", "7")):
        small.commit([changed])
        with monkeypatch.context() as patched:
            patched.setattr(history_merge, "reach", die)
            with pytest.raises(MergeError):
                small.merge()
        small.merge()
    rows = open_history(small).orderBy("k", "_from_lsn").select("k", "v", "n", "m").collect()
    assert [tuple(row) for row in rows] == [
        *((1, "a", None, None), (1, "n", 1, None), (1, "m", 1, 7), (2, "a", None, 7)),
    ]


def test_two_open_versions_of_a_key_become_one(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)])
    folder = small.lake.locate_target(VERSIONS)
    copied = DeltaTable(folder.uri).to_pyarrow_table()
    write_deltalake(folder.uri, copied, mode="append")
    small.merge([update(T, "1", "b", None)])
    open_ones = open_history(small).where("_is_current").select("k", "v").collect()
    assert [tuple(row) for row in open_ones] == [(1, "b")]
    assert open_history(small).where("_is_current = (_to_lsn is not null)").count() == 0


def test_a_first_merge_that_died_begins_again(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: str) -> None:
        raise OSError("the disk is full")

    wider = make_relation("t", "k int4, v text, big text, n int4")
    small.commit([insert(T, "1", "a", None)], [update(wider, "1", "b", None, "1")])
    with monkeypatch.context() as patched:
        patched.setattr(history_merge, "reach", die)
        with pytest.raises(MergeError):
            small.merge()
    small.merge()
    assert read_states(small.lake).get(NAME) is None or (
        read_states(small.lake)[NAME].state == "streaming"
    )
    assert [row[:2] for row in list_versions(small, "v", "n")] == [("a", None), ("b", 1)]


def test_a_wide_history_and_one_with_a_foreign_column_keep_closed_versions_apart(
    small: SmallLake,
) -> None:
    names = ", ".join(f"c{n} text" for n in range(40))
    wide = make_relation("t", f"k int4, {names}")
    small.merge([insert(wide, "1", *["a"] * 40)])
    small.merge([update(wide, "1", *["b"] * 40)])
    assert len(closed_files(small)) == 1
    folder = small.lake.locate_target(VERSIONS)
    DeltaTable(folder.uri).alter.add_columns([Field("note", PrimitiveType("string"))])
    small.merge([update(wide, "1", *["c"] * 40)])
    assert [row[0] for row in list_versions(small, "c39")] == ["a", "b", "c"]
    assert len(closed_files(small)) == 2


def test_a_history_whose_folder_is_gone_begins_again_with_the_log(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)], [update(T, "1", "b", None)])
    before = list_versions(small, "k", "v")
    small.lake.locate_target(VERSIONS).remove_folder()
    small.merge([insert(T, "2", "a", None)])
    assert list_versions(small, "k", "v")[:2] == before


def test_a_file_with_open_and_closed_versions_is_read_as_both(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None), insert(T, "2", "a", None)])
    small.merge([update(T, "1", "b", None)])
    folder = small.lake.locate_target(VERSIONS)
    DeltaTable(folder.uri).optimize.compact()
    small.merge([update(T, "1", "c", None), delete(T, "2", None, None)])
    assert [row[:2] + row[3:] for row in list_versions(small, "k", "v")] == [
        (1, "a", small.log.lsn - 16, "insert", "update"),
        (1, "b", small.log.lsn, "update", "update"),
        (1, "c", None, "update", None),
        (2, "a", small.log.lsn, "insert", "delete"),
    ]


def test_maintenance_keeps_open_and_closed_versions_in_files_of_their_own(small: SmallLake) -> None:
    small.merge([insert(T, "0", "a", None)])
    for number in range(12):
        small.merge([update(T, "0", str(number), None)])
    before = list_versions(small, "k", "v")
    assert len(closed_files(small)) == 12
    later = EPOCH_START + timedelta(days=300)
    answer = maintain(small.lake, keeping=Keeping(), now=later, tell=lambda _: None)
    assert answer.problems == ()
    assert NAME in answer.compacted
    assert len(closed_files(small)) == 1
    assert list_versions(small, "k", "v") == before
    small.merge([update(T, "0", "last", None)])
    assert list_versions(small, "v")[-1] == ("last", small.log.lsn, None, "update", None)
    assert len(closed_files(small)) == 2
