"""Histories in which a table is older than the cut that names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from spark_jobs import durability
from spark_jobs.ledger import find_cut, read_requests
from spark_jobs.sql import answer_query
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
    shutil.copytree(small.lake.locate(T.table), tmp_path / "copy")
    small.merge([update(T, "2", "c")])
    assert small.rows(T) == WHOLE
    return small


def delete_folder(lake: SmallLake) -> None:
    shutil.rmtree(lake.lake.locate(T.table))


def restore_copy(lake: SmallLake) -> None:
    delete_folder(lake)
    shutil.copytree(lake.lake.root.parent / "copy", lake.lake.locate(T.table))


def restore_copy_and_write_on(lake: SmallLake) -> None:
    """Somebody restores the table, and changes its properties: its version is high enough."""
    restore_copy(lake)
    table = DeltaTable(lake.lake.locate(T.table))
    for number in range(3):
        table.alter.set_table_properties({"delta.logRetentionDuration": f"interval {number} days"})


def lose_newest_commit(lake: SmallLake) -> None:
    """What a power failure leaves of a commit that was not forced to the disk."""
    (newest,) = sorted((lake.lake.locate(T.table) / "_delta_log").glob("*.json"))[-1:]
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


def test_the_file_of_a_deletion_vector_is_found_by_its_name(tmp_path: Path) -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    log = tmp_path / "_delta_log"
    log.mkdir()
    line = json.dumps({"add": {"path": "part.parquet", "deletionVector": vector}})
    (log / f"{0:020}.json").write_text(line, encoding="utf-8")
    found = [*durability._list_files(tmp_path, log, range(1))]
    assert tmp_path / "ab" / name in found
