"""The store makes a commit and its reply is lost, so that the client's own retry is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField

from cdc_core.errors import StagingError
from cdc_core.lake_layout import EPOCHS
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.ledgers import append_numbered
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.settings import SourceSettings
from cdc_core.staging.log import Log
from cdc_core.staging.log_files import list_staged_files
from cdc_core.staging.relations import RelationStore
from cdc_core.staging.subscriptions import Subscription
from cdc_core.staging.tables import append_rows, open_table
from cdc_core.targets import Target
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.target.creation import create_target
from tests.capture.test_interfaces import EPOCH, land
from tests.spark.relations import make_relation
from tests.store_proxy import Fault, LostReply, Request, StoreProxy

SUBSCRIPTION = Subscription.of(SourceSettings(dsn="dbname=none"))


class Losses:
    """Loses the reply to the first try of each commit to a Delta table."""

    def __init__(self) -> None:
        self.tries = Counter[str]()

    def choose(self, request: Request) -> Fault:
        if not (request.is_conditional_write and "/_delta_log/" in request.path):
            return None
        self.tries[request.path] += 1
        return LostReply() if self.tries[request.path] == 1 else None


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def losing(object_lake: ObjectPlace, losses: Losses) -> Iterator[ObjectPlace]:
    """The root of a lake in a store that loses the first reply to each commit."""
    proxy = StoreProxy(object_lake.store)
    proxy.choose = losses.choose
    with proxy.run():
        yield replace(object_lake, store=proxy.store)


def test_the_log_is_made_and_has_each_row_once(
    losing: ObjectPlace, object_lake: ObjectPlace, losses: Losses, tmp_path: Path
) -> None:
    log = Log(losing, spool=tmp_path, subscription=SUBSCRIPTION)
    log.begin_epoch(EPOCH)
    log.begin_epoch(replace(EPOCH, epoch=2))
    t, u = make_relation("t", "k int4"), make_relation("u", "k int4")
    log.store_relations([(t, Lsn(5))], epoch=2)
    log.store_relations([(u, Lsn(9))], epoch=2)
    log.remove_leftovers(replace(EPOCH, epoch=2), Lsn(9))
    # Three tables were made, and five commits to them.
    assert len(losses.tries) == 8
    found = Log(object_lake, spool=tmp_path, subscription=SUBSCRIPTION)
    assert found.read_epoch() == replace(EPOCH, epoch=2)
    assert open_delta(object_lake / EPOCHS).to_pyarrow_table().num_rows == 2
    assert RelationStore(object_lake).latest(t.oid) == t
    assert RelationStore(object_lake).latest(u.oid) is None


def test_a_batch_is_staged_once_and_the_session_goes_on(
    losing: ObjectPlace, object_lake: ObjectPlace, losses: Losses, tmp_path: Path
) -> None:
    log = Log(losing, spool=tmp_path, subscription=SUBSCRIPTION)
    log.begin_epoch(EPOCH)
    log.read_staged(EPOCH)
    known = len(losses.tries)
    for commit_lsn in (200, 300):
        land(log, commit_lsn)
    oldest, _ = list_staged_files(log.open_newest())
    log.replace_files([oldest], None, trimmed=oldest.end)
    land(log, 400)
    assert len(losses.tries) == known + 4
    found = Log(object_lake, spool=tmp_path, subscription=SUBSCRIPTION)
    assert found.read_staged(EPOCH) == 448
    staged = [one.commit_lsn for one in found.read_transactions(EPOCH, since=Lsn(0))]
    assert staged == [300, 400]
    assert found.read_trimmed(EPOCH) == 248
    assert found.read_subscription() == SUBSCRIPTION


def test_a_row_of_another_writer_is_not_taken_for_the_own_one(
    losing: ObjectPlace, object_lake: ObjectPlace
) -> None:
    schema = pa.schema([pa.field("k", pa.int64())])
    folder, behind = losing / EPOCHS, object_lake / EPOCHS
    table, other = open_table(folder, schema), open_table(behind, schema)
    append_rows(other, behind, pa.table({"k": [1]}))
    with pytest.raises(StagingError):
        append_rows(table, folder, pa.table({"k": [2]}))
    assert open_delta(behind).to_pyarrow_table()["k"].to_pylist() == [1]


def test_a_ledger_is_made_and_has_each_row_once(
    losing: ObjectPlace, object_lake: ObjectPlace, losses: Losses
) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("number", pa.int64())])
    for key in (1, 2):
        append_numbered(losing / "ledger", [{"k": key}], schema)
    rows = open_delta(object_lake / "ledger").to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["number"]) for row in rows) == [(1, 0), (2, 1)]
    assert len(losses.tries) == 2


def test_a_table_is_made(losing: ObjectPlace, losses: Losses) -> None:
    fields, no_session = [StructField("k", IntegerType())], cast("SparkSession", None)
    made = create_target(no_session, Lake(losing), Target(TableName("public", "t")), fields)
    assert made.version() == 0
    assert len(losses.tries) == 1
