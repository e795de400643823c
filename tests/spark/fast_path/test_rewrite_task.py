"""Which files of a table a rewrite touches, which it joins, and which it leaves to Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.ledger import read_requests
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import path_of
from tests.spark.relations import Entry, delete, insert, make_relation, update
from tests.spark.small_lake import SmallLake
from tests.spark.table_files import (
    APART,
    find_homes,
    find_result,
    list_files,
    read_column,
    require_nothing_left,
)

SEED = 20261123
T = make_relation("t", "k int4, v text")
WIDER = make_relation("t", "k int4, v text, w text")
# Spark writes no table whole because it is small.
BY_KEY = replace(DEFAULT_LIMITS, small_table_bytes=0)
APART_BY_KEY = replace(APART, small_table_bytes=0)
ROWS = [(k, "a") for k in range(10)]


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> Iterator[SmallLake]:
    """Lend a table of four files: of the key 0, of 1 to 3, of 4 to 6, and of 7 to 9."""
    made = SmallLake(spark, tmp_path, limits=APART)
    for keys in ("0", "123", "456", "789"):
        made.merge([insert(T, k, "a") for k in keys])
    assert len(list_files(made, T)) == 4
    yield made
    require_nothing_left(path_of(made.lake.root) / "tables")


def check(
    small: SmallLake,
    entries: list[Entry],
    way: WritePlan,
    *,
    limits: MergeLimits | None = None,
    refusal: str | None = None,
) -> None:
    """Merge changes, and see which way it went and why Arrow rewrote no files."""
    merged = find_result(small.merge(entries, limits=limits or small.limits), T)
    assert (merged.way, merged.refusal) == (way, refusal)


def replace_rows(*changed: tuple[int, str]) -> list[tuple[int, str]]:
    return sorted({**dict(ROWS), **dict(changed)}.items(), key=repr)


def run(small: SmallLake, statement: str) -> None:
    small.spark.sql(statement.format(f"delta.`{small.lake.locate(T.table)}`"))


@contextmanager
def hidden(folder: Path, names: set[str]) -> Iterator[None]:
    """Have some files of a table gone during a block."""
    away = [(folder / name, folder / f"_{name}.away") for name in sorted(names)]
    for here, there in away:
        here.rename(there)
    try:
        yield
    finally:
        for here, there in away:
            there.rename(here)


def test_a_change_of_one_key_rewrites_the_file_that_has_it_and_no_other(small: SmallLake) -> None:
    before = find_homes(small, T)
    merged = find_result(small.merge([update(T, "5", "b")]), T)
    assert (merged.inserted, merged.updated, merged.deleted, merged.rows) == (0, 1, 0, 10)
    assert merged.way is WritePlan.REWRITE_FILES
    after = find_homes(small, T)
    assert {k: after[k] for k in (0, 1, 2, 3, 7, 8, 9)} == {
        k: before[k] for k in (0, 1, 2, 3, 7, 8, 9)
    }
    assert after[4] == after[6] != after[5]
    assert not {after[4], after[5]} & {*before.values()}
    assert small.rows(T) == replace_rows((5, "b"))


def test_changes_in_several_files_are_one_commit(small: SmallLake) -> None:
    before, version = find_homes(small, T), small.version(T)
    changes = [
        update(T, "2", "b"),
        delete(T, "7", None),
        delete(T, "0", None),
        insert(T, "11", "b"),
    ]
    merged = find_result(small.merge(changes), T)
    assert (merged.inserted, merged.updated, merged.deleted, merged.rows) == (1, 1, 2, 9)
    assert merged.way is WritePlan.REWRITE_FILES
    assert merged.version == small.version(T) == version + 1
    after = find_homes(small, T)
    assert [k for k in after if after[k] == before.get(k)] == [4, 5, 6]
    assert after[1] == after[3] != after[8] == after[9]
    assert after[2] == after[11] not in {after[1], after[8]}
    assert small.rows(T) == sorted(
        {**dict(ROWS), 2: "b", 11: "b"}.items() - {(7, "a"), (0, "a")}, key=repr
    )


@pytest.mark.parametrize("change", [delete(T, "5", None), update(T, "5", "b")], ids=["gone", "new"])
def test_a_file_without_the_key_stays_even_if_its_keys_lie_around_it(
    small: SmallLake, change: Entry
) -> None:
    small.merge([delete(T, "5", None)])
    before = find_homes(small, T)
    check(small, [change], WritePlan.REWRITE_FILES)
    after = find_homes(small, T)
    assert {k: after[k] for k in before} == before
    assert len(after) == len(before) + (change[1]["op"] == "update")


def test_a_file_is_not_opened_if_its_keys_lie_elsewhere(small: SmallLake) -> None:
    homes = find_homes(small, T)
    changes = [update(T, "5", "b"), insert(T, "20", "b")]
    with hidden(path_of(small.lake.locate(T.table)), {*homes.values()} - {homes[5]}):
        check(small, changes, WritePlan.REWRITE_FILES)
    assert small.rows(T) == replace_rows((5, "b"), (20, "b"))


def test_a_file_without_statistics_is_opened(small: SmallLake) -> None:
    small.spark.conf.set("spark.databricks.delta.stats.collect", "false")
    run(small, "insert into {0} by name select * except (k), k + 20 as k from {0} where k = 3")
    small.spark.conf.unset("spark.databricks.delta.stats.collect")
    before = find_homes(small, T)
    merged = find_result(small.merge([delete(T, "23", None)]), T)
    assert merged.way is WritePlan.REWRITE_FILES
    assert (merged.deleted, merged.rows) == (1, 10)
    assert find_homes(small, T) == {k: home for k, home in before.items() if k != 23}


def test_small_files_are_joined_with_the_rows_that_arrive(small: SmallLake) -> None:
    check(small, [insert(T, "10", "b")], WritePlan.REWRITE_FILES, limits=DEFAULT_LIMITS)
    assert len(list_files(small, T)) == 1
    assert small.rows(T) == replace_rows((10, "b"))


def test_joined_files_keep_a_repeated_text_in_a_dictionary(small: SmallLake) -> None:
    for k in range(10, 20):
        small.merge([insert(T, str(k), "a" * 100)], limits=DEFAULT_LIMITS)
    sizes = list_files(small, T)
    largest = max(sizes, key=lambda name: sizes[name])
    group = pq.read_metadata(path_of(small.lake.locate(T.table)) / largest).row_group(0)
    assert group.num_rows > 10
    columns = [group.column(index) for index in range(group.num_columns)]
    assert [one.has_dictionary_page for one in columns if one.path_in_schema == "v"] == [True]


@pytest.mark.parametrize("over", [0, -1])
def test_a_file_is_joined_up_to_the_limit_of_its_size(small: SmallLake, over: int) -> None:
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    rng = random.Random(SEED)
    small.merge([delete(T, str(k), None) for k in range(10)])
    small.merge([insert(T, "1", rng.randbytes(900).hex())])
    small.merge([insert(T, "2", rng.randbytes(1_000).hex())], limits=APART)
    small.merge([insert(T, "3", rng.randbytes(30_000).hex())], limits=APART)
    before, sizes = find_homes(small, T), list_files(small, T)
    limit, large = sizes[before[2]], sizes[before[3]]
    # So the limit alone decides.
    assert limit / 2 < sizes[before[1]] < limit < large
    limits = MergeLimits(small_file_bytes=limit + over, open_file_bytes=large)
    check(small, [insert(T, "4", "b")], WritePlan.REWRITE_FILES, limits=limits)
    after = find_homes(small, T)
    assert after[3] == before[3]
    is_joined = over == 0
    assert (after[1] == after[2] == after[4]) == is_joined
    assert (after[2] == before[2]) != is_joined


def test_merges_of_inserts_leave_few_files_and_rewrite_few_rows(small: SmallLake) -> None:
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    rng = random.Random(SEED)
    # The size of each file that a merge wrote.
    written = dict[str, int]()
    for k in range(10, 74):
        small.merge([insert(T, str(k), rng.randbytes(5_000).hex())], limits=DEFAULT_LIMITS)
        files = list_files(small, T)
        written |= files
        assert len(files) <= 8
    assert sum(written.values()) < 10 * sum(files.values())


def test_files_are_joined_up_to_the_size_at_which_a_file_is_closed(small: SmallLake) -> None:
    before, sizes = find_homes(small, T), list_files(small, T)
    smallest, second, *_ = sorted(sizes, key=lambda name: sizes[name])
    room = sizes[smallest] + sizes[second]
    limits = MergeLimits(small_file_bytes=max(sizes.values()), open_file_bytes=room)
    check(small, [insert(T, "10", "b")], WritePlan.REWRITE_FILES, limits=limits)
    after = find_homes(small, T)
    joined = {k for k in after if after[k] == after[10]} - {10}
    assert len({before[k] for k in joined}) == 2
    assert sum(sizes[home] for home in {before[k] for k in joined}) == room
    assert {k: after[k] for k in before.keys() - joined} == {
        k: before[k] for k in before.keys() - joined
    }


@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_gets_further_rows_below_the_limit_of_its_size(
    small: SmallLake,
    is_open: bool,  # noqa: FBT001 - Whether the file is smaller than the limit.
) -> None:
    before = find_homes(small, T)
    size = list_files(small, T)[before[5]]
    limits = MergeLimits(small_file_bytes=0, open_file_bytes=size + is_open)
    check(small, [update(T, "5", "b")], WritePlan.REWRITE_FILES, limits=limits)
    after = find_homes(small, T)
    assert after[4] == after[6] not in before.values()
    assert (after[5] == after[4]) == is_open
    assert {k: after[k] for k in (0, 1, 2, 3, 7, 8, 9)} == {
        k: before[k] for k in (0, 1, 2, 3, 7, 8, 9)
    }


@pytest.mark.parametrize("limits", [APART, DEFAULT_LIMITS], ids=["apart", "joined"])
def test_a_file_with_deleted_rows_is_left_alone_until_a_change_touches_it(
    small: SmallLake, limits: MergeLimits
) -> None:
    home = find_homes(small, T)[5]
    run(small, "alter table {} set tblproperties (delta.enableDeletionVectors = true)")
    run(small, "delete from {} where k = 5")
    assert home in list_files(small, T), "its rows are deleted by a vector"
    assert read_column(path_of(small.lake.locate(T.table) / home), "k") == [4, 5, 6]
    changes = [update(T, "2", "b"), insert(T, "10", "b")]
    merged = find_result(small.merge(changes, limits=limits), T)
    assert merged.way is WritePlan.REWRITE_FILES
    assert (merged.inserted, merged.updated, merged.rows) == (1, 1, 10)
    assert home in list_files(small, T)
    assert len(list_files(small, T)) == (5 if limits is APART else 2)
    rows = {**dict(ROWS), 2: "b", 10: "b"}
    del rows[5]
    assert small.rows(T) == sorted(rows.items(), key=repr)
    # Keys in the file with the vector: one that is there, and the one that was deleted.
    merged = find_result(small.merge([update(T, "4", "b"), update(T, "5", "b")], limits=limits), T)
    assert merged.way is WritePlan.REWRITE
    assert merged.refusal == "a file with a changed key has deleted rows"
    rows |= {4: "b", 5: "b"}
    assert small.rows(T) == sorted(rows.items(), key=repr)


def test_few_bytes_of_a_table_with_vectors_are_rewritten(small: SmallLake) -> None:
    run(small, "alter table {} set tblproperties (delta.enableDeletionVectors = true)")
    limits = replace(APART, small_table_bytes=0, rewrite_bytes_of_vectors=1)
    merged = find_result(small.merge([update(T, "5", "b")], limits=limits), T)
    assert merged.way is WritePlan.MERGE
    assert merged.refusal == "files of more than 1 bytes have changed keys"
    check(small, [update(T, "2", "c")], WritePlan.REWRITE_FILES)


def test_a_file_that_is_older_than_a_column_has_null_in_it(small: SmallLake) -> None:
    wider = [insert(WIDER, "10", "b", "w"), update(WIDER, "2", "b", "w")]
    check(small, wider, WritePlan.MERGE, limits=APART_BY_KEY)
    homes = find_homes(small, T)
    check(small, [update(WIDER, "5", "b", "w")], WritePlan.REWRITE_FILES)
    after = find_homes(small, T)
    assert after[4] == after[6] not in homes.values()
    changed = {2, 5, 10}
    expected = [(k, "b", "w") if k in changed else (k, "a", None) for k in range(11)]
    assert small.rows(WIDER) == sorted(expected, key=repr)


SEVERAL = "the table has several rows with the same key"
NEWER = "the table has a row with a newer position than its change"


# The other row with the key is in a file of its own, which another task may rewrite, or the same.
@pytest.mark.parametrize(("key", "limits"), [(2, APART_BY_KEY), (5, APART_BY_KEY), (5, BY_KEY)])
def test_a_key_with_rows_in_several_files_is_refused(
    small: SmallLake, key: int, limits: MergeLimits
) -> None:
    run(small, f"insert into {{0}} by name select * from {{0}} where k = {key}")
    change = update(T, str(key), "b")
    check(small, [change], WritePlan.MERGE, limits=limits, refusal=SEVERAL)
    assert small.rows(T) == replace_rows((key, "b"))
    assert len(read_requests(small.lake)) == 1


@pytest.mark.parametrize("change", [update(T, "5", "b"), delete(T, "5", None)], ids=["new", "gone"])
def test_a_key_with_several_rows_in_one_file_is_refused(small: SmallLake, change: Entry) -> None:
    place = str(small.lake.locate(T.table))
    rows = small.spark.read.format("delta").load(place)
    rows = rows.union(rows.where("k = 5")).coalesce(1)
    rows.write.format("delta").mode("overwrite").save(place)
    assert len(list_files(small, T)) == 1
    assert len(small.rows(T)) == 11
    check(small, [change], WritePlan.MERGE, limits=APART_BY_KEY, refusal=SEVERAL)
    is_gone = change[1]["op"] == "delete"
    assert small.rows(T) == [row for row in replace_rows((5, "b")) if not is_gone or row[0] != 5]


# What another writer sets in the row of key 5; `{}` is the change's own position in the log.
NEWER_ROWS = {
    "epoch": "_epoch = 2, _commit_lsn = 0, _seq = 0",
    "transaction": "_commit_lsn = {} + 1, _seq = -1",
    "entry": "_commit_lsn = {}, _seq = 1",
}
OLDER_ROWS = {
    "the same": "_commit_lsn = {}, _seq = 0",
    "epoch": "_epoch = 0, _commit_lsn = 1000000, _seq = 1000000",
    "transaction": "_commit_lsn = {} - 1, _seq = 1000000",
    "unknown": "_epoch = null, _commit_lsn = null, _seq = null",
    "unknown epoch": "_epoch = null, _commit_lsn = 1000000",
}


def meddle(small: SmallLake, values: str) -> None:
    """Have another writer give the row of key 5 a position, as the next change has or others."""
    run(small, "update {} set v = 'new', " + values.format(small.log.lsn + 8) + " where k = 5")


@pytest.mark.parametrize(
    ("case", "change", "limits"),
    [
        ("epoch", update(T, "5", "b"), APART_BY_KEY),
        ("transaction", delete(T, "5", None), APART_BY_KEY),
        ("entry", update(T, "5", "b"), BY_KEY),
    ],
    ids=[*NEWER_ROWS],
)
def test_a_row_that_is_newer_than_its_change_is_refused(
    small: SmallLake, case: str, change: Entry, limits: MergeLimits
) -> None:
    meddle(small, NEWER_ROWS[case])
    check(small, [change], WritePlan.MERGE, limits=limits, refusal=NEWER)
    assert small.rows(T) == replace_rows((5, "new"))


@pytest.mark.parametrize("case", OLDER_ROWS)
def test_a_row_that_is_not_newer_than_its_change_is_replaced(small: SmallLake, case: str) -> None:
    meddle(small, OLDER_ROWS[case])
    check(small, [update(T, "5", "b")], WritePlan.REWRITE_FILES)
    assert small.rows(T) == replace_rows((5, "b"))


def test_a_newer_row_that_no_change_names_is_kept(small: SmallLake) -> None:
    meddle(small, NEWER_ROWS["epoch"])
    check(small, [update(T, "4", "b")], WritePlan.REWRITE_FILES, limits=DEFAULT_LIMITS)
    assert small.rows(T) == replace_rows((4, "b"), (5, "new"))
