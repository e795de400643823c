"""Histories in which another writer puts something else in the place of a table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from cdc_core.settings import load_settings
from cdc_core.vocabulary import Lsn
from orchestration.backfill.missing_values import HoleReader
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Bound
from spark_jobs.lake.leases import holding_lease
from spark_jobs.lake.ledger import find_cut, read_requests, read_states
from spark_jobs.query.as_of import table_at
from tests.lakes import path_of
from tests.spark.relations import Entry, insert, make_relation, update
from tests.spark.small_lake import SmallLake

T, OTHER = make_relation("t", "k int4, v text"), make_relation("u", "k int4")
WHOLE = [(1, "a"), (2, "c"), (3, "b")]
FOREIGN = pa.table({"k": pa.array([7, 8], pa.int32()), "v": ["x", "y"]})
PARTITIONED = pa.table({"k": pa.array([7], pa.int32()), "day": ["2026-01-01"]})


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Three merged transactions of a table, beside another table."""
    small = SmallLake(spark, tmp_path)
    small.merge([insert(T, "1", "a"), insert(T, "2", "a"), insert(OTHER, "1")])
    small.merge([insert(T, "3", "b")])
    small.merge([update(T, "2", "c")])
    assert small.rows(T) == WHOLE
    return small


def overwrite(lake: SmallLake) -> None:
    """Somebody writes the table again with pandas or polars: same columns, no metadata."""
    folder = lake.lake.locate(T.table)
    write_deltalake(folder.uri, FOREIGN, mode="overwrite", schema_mode="overwrite")


def overwrite_by_spark(lake: SmallLake) -> None:
    rows = lake.spark.createDataFrame([(7, "2026-01-01")], "k int, day string")
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy("day").save(str(lake.lake.locate(T.table)))


def save_another_table(lake: SmallLake) -> None:
    folder = lake.lake.locate(T.table)
    shutil.rmtree(path_of(folder))
    for _ in range(6):
        write_deltalake(folder.uri, PARTITIONED, mode="append", partition_by=["day"])


CASES = [overwrite, overwrite_by_spark, save_another_table]
MORE: dict[str, list[Entry]] = {
    "idle": [insert(OTHER, "2")],
    "changed": [insert(OTHER, "2"), insert(T, "4", "d")],
}


@pytest.mark.parametrize("happen", CASES, ids=lambda case: case.__name__)
def test_a_replaced_table_is_built_again_when_nothing_else_happens(
    lake: SmallLake, happen: Callable[[SmallLake], None]
) -> None:
    happen(lake)
    lake.merge()
    assert lake.rows(T) == WHOLE


@pytest.mark.parametrize("happen", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("more", MORE)
def test_a_table_that_another_writer_replaced_is_built_again_from_the_log(
    lake: SmallLake, happen: Callable[[SmallLake], None], more: str
) -> None:
    happen(lake)
    lake.merge(MORE[more])
    assert lake.rows(OTHER) == [(1,), (2,)]
    assert lake.rows(T) == (WHOLE if more == "idle" else [*WHOLE, (4, "d")])
    cut = find_cut(lake.lake)
    assert cut is not None
    assert cut.merged["public.t"] == cut.bound
    assert cut.versions["public.t"] == lake.version(T)
    assert not read_requests(lake.lake), "the log has all that is needed"
    assert lake.merge() == []
    (done,) = lake.merge([update(T, "1", "e")])
    assert done.tables["public.t"].updated == 1


def test_a_table_that_is_replaced_in_mid_run_is_built_again_at_its_next_change(
    lake: SmallLake,
) -> None:
    for k in ("4", "5"):
        lake.commit([insert(T, k, "d"), insert(OTHER, k)])
    happenings = [overwrite]
    lake.merge(round_rows=1, on_round=lambda _: happenings.pop()(lake) if happenings else None)
    assert lake.rows(T) == [*WHOLE, (4, "d"), (5, "d")]
    assert lake.rows(OTHER) == [(1,), (4,), (5,)]


def test_a_replaced_table_whose_log_lacks_changes_is_partial_until_it_is_read_whole(
    lake: SmallLake,
) -> None:
    kept = find_cut(lake.lake)
    assert kept is not None
    overwrite(lake)
    (end,) = lake.commit([insert(OTHER, "2")])
    DeltaTable(path_of(lake.lake.changes)).delete(f"end_lsn <= {int(kept.bound.lsn)}")
    lake.merge()
    (request,) = read_requests(lake.lake)
    assert request.since == Bound(1, Lsn(end))
    assert "another writer has replaced" in request.reason
    assert read_completeness(lake.lake).find_incomplete("public.t") is not None
    cut = find_cut(lake.lake)
    assert cut is not None
    assert "public.t" not in cut.versions, "no reader is given rows of another writer"
    lake.merge([insert(T, "4", "d"), insert(OTHER, "3")])
    assert lake.rows(T) == [(4, "d")]
    assert lake.rows(OTHER) == [(1,), (2,), (3,)]


def test_a_halted_table_that_another_writer_replaced_is_read_whole(lake: SmallLake) -> None:
    dropped = make_relation("t", "k int4")
    lake.merge([insert(dropped, "5")])
    overwrite(lake)
    lake.merge([insert(OTHER, "2")])
    assert lake.rows(dropped) == [(5,)]
    assert lake.rows(OTHER) == [(1,), (2,)]
    assert read_states(lake.lake)["public.t"].state == "streaming"
    assert len(read_requests(lake.lake)) == 1


def test_a_replaced_table_is_verified_and_filled_apart_from_the_others(
    lake: SmallLake, tmp_path: Path
) -> None:
    overwrite(lake)
    cut = find_cut(lake.lake)
    assert cut is not None
    with (
        holding_lease(lake.lake, cut.bound) as lease,
        pytest.raises(LakeError, match="another writer has replaced") as caught,
    ):
        table_at(lake.spark, lake.lake, T.table, cut.bound, lease_of_newest=lease)
    assert "run `walgate merge`: it builds the table again" in caught.value.fix
    file = tmp_path / "walgate.toml"
    file.write_text('[source]\ndsn = "host=/nowhere dbname=x user=w"\n[lake]\nroot = "lake"\n')
    found = HoleReader(load_settings(file, {})).read()
    assert not found.fillable
    assert "another writer has replaced" in found.left[T.table]
