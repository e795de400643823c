"""Which version of a table a read begins from, if the storage fails for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake.leases import holding_lease
from spark_jobs.lake.ledger import find_cut
from spark_jobs.query import stored
from spark_jobs.query.as_of import table_at
from tests.spark.relations import insert, make_relation
from tests.spark.small_lake import SmallLake

T = make_relation("t", "k int4, v text")


def test_a_version_that_cannot_be_opened_now_is_not_taken_for_one_that_is_gone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a verification would call an older version equal, which nobody reads any more."""
    lake = SmallLake(spark, tmp_path)
    lake.merge([insert(T, "1", "a")])
    cut = find_cut(lake.lake)
    assert cut is not None
    folder = lake.lake.locate(T.table)
    open_delta(folder).delete()
    newest, failed = open_delta(folder).version(), list[int]()

    def fail_once(place: LakePlace, version: int | None = None) -> DeltaTable:
        if (place, version) == (folder, newest) and not failed:
            failed.append(newest)
            raise OSError(5, "the store failed: SlowDown")
        return open_delta(place, version=version)

    monkeypatch.setattr(stored, "open_delta", fail_once)
    with (
        holding_lease(lake.lake, cut.bound) as lease,
        pytest.raises(LakeError, match=f"version {newest} of public.t is there") as caught,
    ):
        table_at(lake.spark, lake.lake, T.table, cut.bound, lease_of_newest=lease)
    assert caught.value.retry is Retry.LATER
    assert failed
