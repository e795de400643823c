"""A target of entries has each entry of the log once, in log order, as it was sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from cdc_core.errors import LakeError
from cdc_core.settings import TableSettings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, Relation, TableMode
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.ledger import find_cut, read_states
from spark_jobs.maintenance.maintenance import maintain
from spark_jobs.maintenance.old_entries import remove_old_entries
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.merge import entry_merge
from spark_jobs.query.entries_at import entries_at
from spark_jobs.query.sql import answer_query
from spark_jobs.target.result import WritePlan
from tests.lakes import path_of
from tests.spark.log_writer import EPOCH_START
from tests.spark.relations import (
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

APPEND = TableSettings(modes=(TableMode.CURRENT, TableMode.APPEND))
T = make_relation("t", "k int4, v text, big text")
ENTRIES = Target(T.table, TargetKind.APPEND)
NAME = "append/public.t"


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a lake whose tables also have their entries."""
    made = SmallLake(spark, tmp_path)
    made.lake = replace(made.lake, rules={"*.*": APPEND})
    return made


def list_rows(small: SmallLake, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of the target in log order."""
    rows = small.spark.read.format("delta").load(small.lake.locate_target(ENTRIES).uri)
    return in_order(rows, *columns)


def in_order(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of rows, in log order."""
    ordered = rows.orderBy("_epoch", "_commit_lsn", "_seq")
    return [tuple(row) for row in ordered.select(*(f"`{name}`" for name in columns)).collect()]


def rename(relation: Relation, old: str, new: str) -> Relation:
    """The relation with a column of another name."""
    columns = [replace(c, name=new) if c.name == old else c for c in relation.columns]
    return replace(relation, columns=tuple(columns))


def test_each_kind_of_entry_is_a_row_as_it_was_sent(small: SmallLake) -> None:
    ends = small.commit(
        [insert(T, "1", "a", "x"), update(T, "1", "b", None, unchanged=[2])],
        [update(T, "2", "b", None, old=["1", None, None], unchanged=[2]), mark(T)],
        [delete(T, "2", None, None), truncate(T)],
        [read(T, "3", "c", None), sweep(T, start=16)],
    )
    (done,) = small.merge()
    columns = ("_op", "k", "v", "big", "_old", "_holes", "_end_lsn")
    assert list_rows(small, *columns) == [
        ("insert", 1, "a", "x", None, None, ends[0]),
        ("update", 1, "b", None, None, ["big"], ends[0]),
        ("update", 2, "b", None, {"k": "1"}, ["big"], ends[1]),
        ("delete", None, None, None, {"k": "2"}, None, ends[2]),
        ("truncate", None, None, None, None, None, ends[2]),
        ("read", 3, "c", None, None, None, ends[3]),
        ("sweep", None, None, None, None, None, ends[3]),
    ]
    assert list_rows(small, "_detail")[-1][0].startswith('{"start"')
    assert done.tables[NAME].inserted == done.tables[NAME].rows == 7
    cut = find_cut(small.lake)
    assert cut is not None
    assert cut.versions[NAME] == done.tables[NAME].version
    assert small.rows(T, "k") == [(3,)]


def test_a_repeated_entry_is_one_row(small: SmallLake) -> None:
    small.log.add([insert(T, "1", "a", None), insert(T, "2", "a", None)])
    small.log.commit(repeat=2)
    small.merge()
    small.merge([insert(T, "3", "a", None)])
    assert [k for (k,) in list_rows(small, "k")] == [1, 2, 3]
    assert small.merge() == []


def test_a_value_that_its_type_cannot_hold_is_kept_whole(small: SmallLake) -> None:
    odd = make_relation("t", "k int4, v date")
    small.merge([insert(odd, "1", "infinity")], [insert(odd, "2", "2026-01-01")])
    assert list_rows(small, "_raw") == [({"v": "infinity"},), (None,)]
    (done,) = small.merge([insert(odd, "3", "-infinity")])
    assert done.tables[NAME].lossy == {"v": 2}


def test_new_columns_leave_the_older_rows_in_their_files(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)])
    files = set(DeltaTable(small.lake.locate_target(ENTRIES).uri).file_uris())
    wider = replace(
        T,
        columns=(
            *T.columns,
            replace(T.columns[1], name="added", attnum=4, missing_value="old", has_default=True),
        ),
    )
    (done,) = small.merge([insert(wider, "2", "b", None, "new")])
    assert done.tables[NAME].way is WritePlan.APPEND
    assert list_rows(small, "k", "added") == [(1, None), (2, "new")]
    assert files < set(DeltaTable(small.lake.locate_target(ENTRIES).uri).file_uris())
    assert small.rows(T, "k")[0] == (1,)


@pytest.mark.parametrize("is_one_round", [True, False])
def test_changed_columns_keep_the_values_of_older_entries(
    small: SmallLake, *, is_one_round: bool
) -> None:
    def commit(*transactions: list[Any]) -> None:
        if is_one_round:
            small.commit(*transactions)
        else:
            small.merge(*transactions)

    typed = make_relation("t", "k int4, w text, n int4", identity="f")
    first = make_relation("t", "k int4, v text, n text", identity="f")
    commit([insert(first, "1", "a", "7"), insert(first, "2", "b", "odd")])
    commit([update(first, "1", "c", "8", old=["1", "a", "7"])])
    commit([insert(typed, "3", "d", "9"), delete(typed, "1", "c", "8")])
    dropped = replace(typed, columns=(typed.columns[0], typed.columns[2]))
    commit([insert(dropped, "4", "5")])
    small.merge()
    assert list_rows(small, "k", "w", "n", "_raw", "_old") == [
        (1, "a", 7, None, None),
        (2, "b", None, {"n": "odd"}, None),
        (1, "c", 8, None, {"k": "1", "w": "a", "n": "7"}),
        (3, "d", 9, None, None),
        (None, None, None, None, {"k": "1", "w": "c", "n": "8"}),
        (4, None, 5, None, None),
    ]


@pytest.mark.parametrize("is_one_round", [True, False])
def test_values_that_a_rule_now_hides_are_gone(small: SmallLake, *, is_one_round: bool) -> None:
    full = make_relation("t", "k int4, v text, s date", identity="f")
    rest = (full.columns[0], full.columns[2])
    hashed = replace(full, columns=(rest[0], replace(full.columns[1], hashed_by="x"), rest[1]))
    small.commit(
        [insert(full, "1", "secret", "infinity")],
        [update(full, "1", "other", "infinity", old=["1", "secret", "infinity"])],
    )
    if not is_one_round:
        small.merge()
    small.commit([insert(hashed, "2", "0ab1", None)])
    if not is_one_round:
        small.merge()
    excluded = replace(hashed, columns=hashed.columns[:2], left_out=(3,))
    small.merge([delete(excluded, "1", "0ab2")])
    found = list_rows(small, "_op", "k", "v", "s", "_old", "_raw", "_holes")
    assert found == [
        ("insert", 1, None, None, None, None, ["v", "s"]),
        ("update", 1, None, None, {"k": "1"}, None, ["v", "s"]),
        ("insert", 2, "0ab1", None, None, None, ["s"]),
        ("delete", None, None, None, {"k": "1", "v": "0ab2"}, None, None),
    ]


def test_a_table_without_a_key_halts_and_its_entries_do_not(small: SmallLake) -> None:
    bare = make_relation("t", "k int4, v text", key="none", identity="n")
    (done,) = small.merge([insert(bare, "1", "a"), insert(bare, "1", "a")])
    assert set(done.halted) == {"public.t"}
    assert list_rows(small, "k", "v") == [(1, "a"), (1, "a")]


def test_names_that_halt_the_rows_do_not_halt_the_entries(small: SmallLake) -> None:
    odd = make_relation("t", "k int4, _v text, V text, v text")
    (done,) = small.merge([insert(odd, "1", "a", "b", "c")])
    assert set(done.halted) == {"public.t"}
    assert list_rows(small, "~5Fv", "V", "v~20~282~29") == [("a", "b", "c")]


def test_an_entry_of_a_newer_version_halts_the_target_before_it(small: SmallLake) -> None:
    newer = (T, {"op": "later"})
    (done,) = small.merge([insert(T, "1", "a", None)], [insert(T, "2", "b", None), newer])
    assert set(done.halted) == {"public.t", NAME}
    assert [k for (k,) in list_rows(small, "k")] == [1]
    assert "does not apply" in (read_states(small.lake)[NAME].reason or "")
    small.lake.locate_target(ENTRIES).remove_folder()
    small.merge()
    assert [k for (k,) in list_rows(small, "k")] == [1], "it begins with the log again"


def test_an_entry_that_could_not_be_decoded_is_a_row(small: SmallLake) -> None:
    small.merge([(T, {"op": "undecoded", "detail": "{}"}), insert(T, "1", "a", None)])
    assert list_rows(small, "_op", "k", "_detail") == [
        ("undecoded", None, "{}"),
        ("insert", 1, None),
    ]


@pytest.mark.parametrize("is_one_round", [True, False])
def test_a_number_gets_the_digits_of_its_new_type(small: SmallLake, *, is_one_round: bool) -> None:
    first = make_relation("t", "k int4, n int4")
    typed = make_relation("t", "k int4, n numeric", n={"attnum": 2})
    limited = replace(typed.columns[1], type_modifier=(10 << 16 | 2) + 4)
    second = replace(typed, columns=(typed.columns[0], limited))
    third = make_relation("t", "k int4, n text")
    small.commit([insert(first, "1", "7")])
    if not is_one_round:
        small.merge()
    small.commit([insert(second, "2", "8.50")])
    if not is_one_round:
        small.merge()
        assert list_rows(small, "n") == [(Decimal("7.00"),), (Decimal("8.50"),)]
    small.merge([insert(third, "3", "x")])
    assert list_rows(small, "n", "_raw") == [("7.00", None), ("8.50", None), ("x", None)]


def test_a_merge_that_died_after_it_added_columns_is_finished_by_the_next(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.merge([insert(T, "1", "a", None)])
    wider = replace(T, columns=(*T.columns, replace(T.columns[1], name="added", attnum=4)))
    small.commit([insert(wider, "2", "b", None, "new")])

    def die(point: str) -> None:
        if point == "before_merge_commit":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(entry_merge, "reach", die)
        with pytest.raises(KeyboardInterrupt):
            small.merge()
    assert list_rows(small, "k", "added") == [(1, None)]
    small.merge()
    assert list_rows(small, "k", "added") == [(1, None), (2, "new")]


def test_a_new_target_begins_with_the_log_and_an_unwanted_one_is_left_out(
    small: SmallLake,
) -> None:
    wanted, small.lake = small.lake, replace(small.lake, rules={})
    small.merge([insert(T, "1", "a", None)])
    small.lake = wanted
    (done,) = small.merge()
    assert set(done.tables) == {NAME}
    small.merge([insert(T, "2", "b", None)])
    small.lake = replace(small.lake, rules={})
    small.merge([insert(T, "3", "c", None)])
    cut = find_cut(small.lake)
    assert cut is not None
    assert NAME not in cut.versions.keys() | cut.merged.keys()
    small.lake = wanted
    small.merge([insert(T, "4", "d", None)])
    assert [k for (k,) in list_rows(small, "k")] == [1, 2, 3, 4]


def test_entries_are_read_at_each_lsn(small: SmallLake) -> None:
    ends = small.commit(
        [insert(T, "1", "a", None)], [insert(T, "2", "b", None)], [delete(T, "1", None, None)]
    )
    small.merge()
    renamed = rename(T, "v", "w")
    ends += small.commit([insert(renamed, "3", "c", None)], [truncate(renamed)])

    def read_at(end: int) -> list[tuple[Any, ...]]:
        reading = entries_at(small.spark, small.lake, ENTRIES, Bound(1, Lsn(end)))
        return in_order(reading.rows, "_op")

    expected = ["insert", "insert", "delete", "insert", "truncate"]
    for count, end in enumerate(ends, 1):
        assert [op for (op,) in read_at(end)] == expected[:count]
    small.merge()
    for count, end in enumerate(ends, 1):
        assert [op for (op,) in read_at(end)] == expected[:count]


def test_sql_reads_entries_by_their_folder(small: SmallLake) -> None:
    (first, _) = small.commit([insert(T, "1", "a", None)], [insert(T, "2", "b", None)])
    small.merge()
    query = "select count(*) from append.public.t"
    for end, count in [(first, 1), (small.log.lsn, 2)]:
        answer = answer_query(small.spark, small.lake, query, Bound(1, Lsn(end)))
        assert answer.rows.collect()[0][0] == count
    plain = replace(small.lake, rules={})
    with pytest.raises(LakeError, match=r"no target append/public\.t"):
        answer_query(small.spark, plain, query, Bound(1, Lsn(first)))


def test_delta_rs_and_polars_read_the_entries(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)], [delete(T, "1", None, None)])
    place = small.lake.locate_target(ENTRIES)
    assert DeltaTable(place.uri).to_pyarrow_table().num_rows == 2
    assert pl.read_delta(str(path_of(place)))["_op"].to_list() == ["insert", "delete"]


def test_a_folder_that_is_gone_begins_again_with_what_the_log_has(small: SmallLake) -> None:
    small.merge([insert(T, "1", "a", None)])
    small.lake.locate_target(ENTRIES).remove_folder()
    small.merge([insert(T, "2", "b", None)])
    assert [k for (k,) in list_rows(small, "k")] == [1, 2]


def test_files_whose_entries_are_all_old_leave_the_target(small: SmallLake) -> None:
    kept = APPEND.model_copy(update={"append_retention": 60.0})
    small.lake = replace(small.lake, rules={"*.*": kept})
    for key, minutes in [("1", 0), ("2", 1), ("3", 2)]:
        small.log.commit_time = EPOCH_START + timedelta(minutes=minutes)
        small.merge([insert(T, key, "infinity", None)])
    epochs = small.lake.read_epochs()
    ninety = EPOCH_START + timedelta(seconds=90)
    assert remove_old_entries(small.lake, ENTRIES, epochs, now=ninety) == 1
    assert remove_old_entries(small.lake, ENTRIES, epochs, now=ninety) == 0
    assert [k for (k,) in list_rows(small, "k")] == [2, 3]
    small.log.commit_time = EPOCH_START + timedelta(minutes=3)
    small.merge([insert(T, "4", "d", None)])
    assert [k for (k,) in list_rows(small, "k")] == [2, 3, 4]
    forever = replace(small.lake, rules={"*.*": APPEND})
    much_later = EPOCH_START + timedelta(days=900)
    assert remove_old_entries(forever, ENTRIES, epochs, now=much_later) == 0
    answer = maintain(small.lake, keeping=Keeping(), now=much_later, tell=lambda _: None)
    assert answer.problems == ()
    assert list_rows(small, "k") == []


def test_maintenance_compacts_the_small_files_of_a_target(small: SmallLake) -> None:
    for key in range(12):
        small.merge([insert(T, str(key), "a", None)])
    answer = maintain(
        small.lake, keeping=Keeping(), now=EPOCH_START + timedelta(days=300), tell=lambda _: None
    )
    assert NAME in answer.compacted
    assert answer.problems == ()
    assert [k for (k,) in list_rows(small, "k")] == [*range(12)]
    assert len(DeltaTable(small.lake.locate_target(ENTRIES).uri).file_uris()) < 12
    small.merge([insert(T, "12", "a", None)])
    assert [k for (k,) in list_rows(small, "k")] == [*range(13)]
