"""The entries of one table in a range of the log, held in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound
from spark_jobs.log import in_memory
from spark_jobs.log.files import LogFiles, LogRange
from spark_jobs.log.in_memory import LogInMemory
from tests.spark.relations import (
    insert,
    make_relation,
)
from tests.spark.small_lake import SmallLake

T = make_relation("t", "k int4, v text, n numeric")


@pytest.mark.parametrize("shared", [True, False])
def test_entries_of_a_table_are_those_of_the_range(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,  # noqa: FBT001 - Whether files are read once for all tables.
) -> None:
    small = SmallLake(spark, tmp_path)
    if not shared:
        monkeypatch.setattr(in_memory, "_SHARED_BYTES", 0)
    other = make_relation("other", "k int4")
    # In one file.
    ends = small.commit(*([insert(T, str(k), "a", "1"), insert(other, str(k))] for k in range(5)))
    files = LogFiles.open(small.lake)
    assert files is not None
    low, middle, high = (Bound(1, Lsn(end)) for end in (ends[0], ends[2], ends[3]))
    log = LogInMemory(LogRange(files, low, high))
    for upper, expected in ((middle, ["1", "2"]), (high, ["1", "2", "3"])):
        found = log.take("public.t", upper)
        assert found is not None
        assert [values[0] for values in found["values"].to_pylist()] == expected
        assert set(found["table"].to_pylist()) == {"public.t"}


def test_few_entries_among_very_many_of_another_table_are_held(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallLake(spark, tmp_path)
    monkeypatch.setattr(in_memory, "_SHARED_BYTES", 0)
    other = make_relation("other", "k int4")
    for k in range(4):
        many = [insert(other, str(1_000 * k + i)) for i in range(1_000)]
        (end,) = small.commit([insert(T, str(k), "a", "1"), *many])
    files = LogFiles.open(small.lake)
    assert files is not None
    # By its footer, each of the four row groups may be 9 MB large.
    monkeypatch.setattr(in_memory, "_MOST_BYTES", 10_000_000)
    log = LogInMemory(LogRange(files, Bound(1, Lsn(0)), Bound(1, Lsn(end))))
    found = log.take("public.t", Bound(1, Lsn(end)))
    assert found is not None
    assert [values[0] for values in found["values"].to_pylist()] == ["0", "1", "2", "3"]
