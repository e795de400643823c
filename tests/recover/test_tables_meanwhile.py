"""Tables through disasters: readable with their old rows throughout, and equal to the source after.

The slot is lost by the server's own limit; the lake is put back from an older copy of its folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from cdc_core.read_point import ReadPoint
from cdc_core.vocabulary import Lsn
from orchestration.backfill.backfill import run_backfills
from orchestration.recovery.recover import plan_recovery, recover
from orchestration.status.status import read_status
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import find_cut
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.as_of import table_at
from spark_jobs.query.read_bound import find_bound_at
from tests.fix_pipeline import Pipeline
from tests.lakes import copy_lake, locate_lake
from tests.postgres_server import PostgresServer
from tests.recover.recovering import ORDERS, change, fill, lose_slot, read_settings

Rows = list[tuple[int, str, int]]


class Reader:
    """Reads the table as `walgate sql` does, and merges."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self.pipeline = pipeline
        self.session = spark.newSession()
        self.lake = Lake.of(read_settings(pipeline))

    def merge(self) -> Bound:
        merge_until(self.session, self.lake, round_rows=1_000_000)
        cut = find_cut(self.lake)
        assert cut is not None
        return cut.bound

    def read(self, at: ReadPoint = "latest") -> Rows:
        rows = table_at(self.session, self.lake, ORDERS, find_bound_at(self.lake, at)).rows
        return [tuple(row) for row in rows.select("id", "note", "v").orderBy("id").collect()]

    def read_source(self) -> Rows:
        return self.pipeline.database.query("select id, note, v from orders order by id")


@pytest.fixture
def reader(
    private_postgres: Callable[..., PostgresServer],
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> Reader:
    """Lend a reader of a table whose server gives up a slot that holds 16 MB."""
    sizes = {"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    pipeline = make_pipeline(private_postgres(18, **sizes).create_database("shop"))
    pipeline.database.query("select pg_drop_replication_slot(%s)", [pipeline.truth_slot])
    fill(pipeline)
    return Reader(pipeline, spark)


@pytest.mark.soak
def test_tables_keep_their_rows_until_they_equal_the_source_again(reader: Reader) -> None:
    pipeline = reader.pipeline
    first = reader.merge()
    # Merged by no round when the slot is lost.
    change(pipeline)
    pipeline.catch_up()
    old, merged = reader.read("live"), reader.read()
    assert old == reader.read_source() != merged
    last = find_bound_at(reader.lake, "live")

    lose_slot(pipeline)
    between = pipeline.current_lsn()
    settings = read_settings(pipeline)
    list(recover(settings, plan_recovery(settings)))
    assert (reader.read("live"), reader.read()) == (old, merged)
    assert find_bound_at(reader.lake, "live").epoch == 2
    # What is staged in the new epoch comes over the old rows, before and after they are merged.
    pipeline.database.execute("update orders set note = 'renewed' where id = 7")
    pipeline.catch_up()
    assert (7, "renewed", 0) in reader.read("live")
    assert reader.merge().epoch == 2
    rows = reader.read()
    assert [row for row in rows if row[0] != 7] == [row for row in old if row[0] != 7]
    assert rows != reader.read_source()
    lack = read_completeness(reader.lake).find_incomplete(str(ORDERS))
    assert lack is not None
    assert lack.state == "queued"
    assert read_status(settings)["capture"]["epoch"] == 2
    # Every LSN of either epoch can be read, and none between them.
    assert reader.read(first.lsn) == merged
    assert reader.read(last.lsn) == old
    with pytest.raises(LakeError, match=f"to {last.lsn}, or from"):
        find_bound_at(reader.lake, Lsn(between))

    backfill(pipeline)
    reader.merge()
    assert reader.read() == reader.read_source()


@pytest.mark.soak
def test_tables_of_a_lake_that_is_an_older_copy_equal_the_source_again(reader: Reader) -> None:
    pipeline = reader.pipeline
    reader.merge()
    copy = locate_lake(pipeline.folder / "copy")
    copy_lake(pipeline.lake, copy)
    kept = reader.read()
    change(pipeline)
    pipeline.catch_up()
    pipeline.lake.remove_folder()
    copy_lake(copy, pipeline.lake)
    settings = read_settings(pipeline)
    list(recover(settings, plan_recovery(settings)))
    assert reader.read() == kept != reader.read_source()
    backfill(pipeline)
    assert reader.merge().epoch == 2
    assert reader.read() == reader.read_source()


def backfill(pipeline: Pipeline) -> None:
    """Read the table whole, in small chunks."""
    run_backfills(
        read_settings(pipeline), [ORDERS], chunk_rows=9, parallel=2, stop=threading.Event()
    )
    pipeline.catch_up()
