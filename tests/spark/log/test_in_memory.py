"""The entries of one table in a range of the log, held in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound
from spark_jobs.log.files import LogFiles, LogRange
from spark_jobs.log.in_memory import SHARED_BYTES, LogInMemory
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
    shared: bool,  # noqa: FBT001 - Whether files are read once for all tables.
) -> None:
    small = SmallLake(spark, tmp_path)
    other = make_relation("other", "k int4")
    # In one file.
    ends = small.commit(*([insert(T, str(k), "a", "1"), insert(other, str(k))] for k in range(5)))
    files = LogFiles.open(small.lake)
    assert files is not None
    low, middle, high = (Bound(1, Lsn(end)) for end in (ends[0], ends[2], ends[3]))
    found_files = LogRange(files, low, high).find_files()
    assert found_files is not None
    log = LogInMemory(found_files, low, high, shared_bytes=SHARED_BYTES if shared else 0)
    assert (log.entries is not None) == shared
    for upper, expected in ((middle, ["1", "2"]), (high, ["1", "2", "3"])):
        found = log.take("public.t", upper, found_files)
        assert found is not None
        assert [values[0] for values in found["values"].to_pylist()] == expected
        assert set(found["table"].to_pylist()) == {"public.t"}


def test_few_entries_among_very_many_of_another_table_are_held(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path)
    other = make_relation("other", "k int4")
    for k in range(4):
        many = [insert(other, str(1_000 * k + i)) for i in range(1_000)]
        (end,) = small.commit([insert(T, str(k), "a", "1"), *many])
    files = LogFiles.open(small.lake)
    assert files is not None
    low, high = Bound(1, Lsn(0)), Bound(1, Lsn(end))
    found_files = LogRange(files, low, high).find_files()
    assert found_files is not None
    # By its footer, each of the four row groups may be 9 MB large.
    log = LogInMemory(found_files, low, high, shared_bytes=0, max_bytes=10_000_000)
    found = log.take("public.t", high, found_files)
    assert found is not None
    assert [values[0] for values in found["values"].to_pylist()] == ["0", "1", "2", "3"]


def test_entries_that_do_not_fit_in_memory_are_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    small = SmallLake(spark, tmp_path)
    (end,) = small.commit([insert(T, str(k), "a", "1") for k in range(100)])
    files = LogFiles.open(small.lake)
    assert files is not None
    high = Bound(1, Lsn(end))
    found_files = LogRange(files, None, high).find_files()
    assert found_files is not None
    for shared_bytes in (0, SHARED_BYTES):
        log = LogInMemory(found_files, None, high, shared_bytes=shared_bytes, max_bytes=1_000)
        assert log.entries is None
        assert log.take("public.t", high, found_files) is None
    assert LogInMemory(found_files, None, high).take("public.t", high, found_files) is not None
