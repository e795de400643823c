"""Histories in which the files of one table are damaged, as by a power failure or a person."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError, MergeError
from cdc_core.settings import Settings, load_settings
from orchestration.assembly import build_definitions
from orchestration.holes import HoleReader
from orchestration.status import read_status
from spark_jobs.cuts import table_at
from spark_jobs.ledger import find_cut, read_requests
from tests.spark.relations import insert, make_relation
from tests.spark.small_lake import SmallLake

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
    return sorted((lake.lake.locate(T.table) / "_delta_log").glob("*.json"))


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
    shutil.rmtree(folder)
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
    DeltaTable(lake.lake.changes).delete(f"end_lsn <= {int(kept.bound.lsn)}")
    shutil.rmtree(lake.lake.locate(T.table))
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
    with pytest.raises(LakeError, match="cannot be opened"):
        table_at(lake.spark, lake.lake, T.table, cut.bound, is_newest=True)
