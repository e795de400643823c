"""Rows with holes come back by themselves: found, read again once, whole after the next merge."""

from __future__ import annotations

import threading

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from cdc_core.backfill import worker
from cdc_core.backfill.results import BackfillProgress
from cdc_core.settings import Settings, TableSettings, load_settings
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.backfill import missing_values
from orchestration.backfill.backfill import run_backfills
from orchestration.backfill.missing_value_job import (
    Try,
    build_fill_holes_job,
    build_fill_holes_sensor,
    decide,
)
from orchestration.backfill.missing_values import HoleReader, choose_oldest
from orchestration.runs.keys import AssetKeys
from orchestration.runs.relaunch import Launch, RunRecord, Skip
from orchestration.status.status import read_status
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.target.missing_values import Hole
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

T = TableName("public", "t")
Status = dg.DagsterRunStatus
NOW = 1_000_000.0


def tick(settings: Settings, instance: dg.DagsterInstance) -> dg.RunRequest | str:
    """The run that the sensor asks for, or why it asks for none."""
    told = build_fill_holes_sensor(settings)(dg.build_sensor_context(instance=instance))
    assert isinstance(told, dg.SensorResult)
    requests = told.run_requests or []
    return requests[0] if requests else str(told.skip_reason and told.skip_reason.skip_message)


def test_history_22_a_hole_that_no_chunk_fills_is_filled_by_itself(
    pipeline: Pipeline,
    database18: Database,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key moves out of what was not read yet into what was, without its unchanged TOAST value.

    The backfill itself would read it again before it is done; here it does not.
    """
    monkeypatch.setattr(worker, "complete_rows", lambda *_, **__: None)
    database18.execute("create table t (id int primary key, v int, big text)")
    database18.execute("alter table t alter big set storage external")
    database18.execute(
        "insert into t select i, i, repeat(md5(i::text), 100) from generate_series(1, 40) i"
    )
    pipeline.make_slot_again()
    capture = pipeline.start_streaming()
    slowly = {"WALGATE_BACKFILL__ROWS_PER_SECOND": "40"}
    settings = load_settings(pipeline.folder / "walgate.toml", slowly)
    session, lake = spark.newSession(), Lake.of(settings)

    def merge() -> None:
        pipeline.wait_until_staged(pipeline.current_lsn())
        merge_until(session, lake, round_rows=1_000_000)

    reader = HoleReader(settings)

    def act(_: TableName, progress: BackfillProgress) -> None:
        if progress.chunks == 1:
            database18.execute("update t set id = -id where id in (39, 40)")
            merge()
            (left,) = reader.read().left.values()
            assert left.startswith("its next backfill brings the values: no backfill has read")

    with dg.DagsterInstance.ephemeral() as instance:
        assert tick(settings, instance) == "no row has missing values"
        run_backfills(
            settings, [T], chunk_rows=5, parallel=1, stop=threading.Event(), on_progress=act
        )
        merge()
        request = tick(settings, instance)
        assert isinstance(request, dg.RunRequest), request
        (table,) = read_status(settings)["tables"]
        assert table["holes"] == len(reader.read().fillable[T]) == 2
        check_reasons(settings, instance, database18)
        job = build_fill_holes_job(settings)
        assert job.execute_in_process(instance=instance, tags=request.tags).success
        seen = (
            instance.fetch_observations(AssetKeys().find_table(T), limit=1)
            .records[0]
            .asset_observation
        )
        assert seen is not None
        assert {name: value.value for name, value in seen.metadata.items()} == {
            "holes": 2,
            "keys_read_again": 2,
        }
        reason = tick(settings, instance)
        assert isinstance(reason, str)
        assert reason.endswith("has read them; the next merge adds the values"), reason
        merge()
        assert tick(settings, instance) == "no row has missing values"
        (table,) = read_status(settings)["tables"]
        assert table["holes"] == len(reader.read().fillable) == 0
    rows = session.read.format("delta").load(str(lake.locate(T)))
    assert sorted(tuple(row) for row in rows.select("id", "v", "big").collect()) == sorted(
        database18.query("select id, v, big from t")
    )
    pipeline.finish(capture)


def check_reasons(settings: Settings, instance: dg.DagsterInstance, database: Database) -> None:
    """Nothing is asked for that could not be done, and it is said why."""
    role = f"r_{database.name}"
    database.execute(f"create role {role} login")
    reasons = {
        ("publication", ("another",)): "public.t: it is not published",
        ("dsn", f"{database.dsn} user={role}"): "public.t: the role may not read the table",
        ("slot", "another"): (
            "public.t: 2 rows with missing values; capture does not hold the slot now"
        ),
    }
    for (name, value), why in reasons.items():
        source = settings.source.model_copy(update={name: value})
        assert tick(settings.model_copy(update={"source": source}), instance) == why
    database.execute(f"drop role {role}")
    hashed = {"public.*": TableSettings(hash=("id",))}
    with pytest.MonkeyPatch.context() as patch:
        # No key is read of a table that is left to a backfill.
        patch.delattr(missing_values, "find_holes")
        answer = tick(settings.model_copy(update={"tables": hashed}), instance)
    assert answer == ("public.t: the lake has only hashes of its key: a whole backfill is needed")
    # A hash that is not of the key keeps no row from being read again by its key.
    other = settings.model_copy(update={"tables": {"public.*": TableSettings(hash=("v",))}})
    assert HoleReader(other).read().fillable.keys() == {T}


def test_a_run_reads_the_oldest_of_so_many_rows_as_it_can() -> None:
    rows = [Hole((str(i),), Position(1, Lsn(i), 0)) for i in range(7000)]
    asked: list[tuple[str, int]] = []

    def find(table: TableName, most: int) -> list[Hole]:
        asked.append((table.name, most))
        return [] if table.name == "a" else rows[:most]

    tables = [TableName("public", name) for name in "dcba"]
    chosen = choose_oldest(tables, find, most=10_000)
    assert {table.name: len(found) for table, found in chosen.items()} == {"b": 7000, "c": 3000}
    assert chosen[TableName("public", "c")] == rows[:3000]
    # No key is read that no run reads again.
    assert asked == [("a", 10_000), ("b", 10_000), ("c", 3000)]


def ran(number: int, *, ago: float, sign: str = "a", status: Status = Status.SUCCESS) -> Try:
    seen = RunRecord(f"{number:08}-run", status, None, "LATER", NOW - ago - 9, NOW - ago)
    return Try(seen, sign)


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([], "a first"),
        ([ran(1, ago=9000)], None),
        ([ran(1, ago=1, sign="b")], "a after:00000001-run"),
        ([ran(1, ago=1, status=Status.FAILURE)], "a after:00000001-run"),
        # It is not asked for again and again, whatever becomes of it.
        ([ran(2, ago=4, sign="c"), ran(1, ago=90, sign="b")], None),
        ([ran(2, ago=6, sign="c"), ran(1, ago=90, sign="b")], "a after:00000002-run"),
        ([ran(n, ago=200, sign=str(n)) for n in range(20)], None),
        ([ran(n, ago=4000, sign=str(n)) for n in range(20)], "a after:00000000-run"),
        (
            [ran(30, ago=60, sign="b"), *(ran(n, ago=4000, sign=str(n)) for n in range(20))],
            "a after:00000030-run",
        ),
        # A clock that was ahead has dated them.
        ([ran(2, ago=-9e6, sign="c"), ran(1, ago=-9e6, sign="b")], "a after:00000002-run"),
        ([ran(2, ago=1, sign="c"), ran(1, ago=-9e6, sign="b")], "a after:00000002-run"),
    ],
)
def test_the_same_rows_are_read_once_and_others_after_a_pause(
    tries: list[Try], expected: str | None
) -> None:
    decision = decide("t", "a", tries, now=NOW)
    if expected is None:
        assert isinstance(decision, Skip)
    else:
        assert decision == Launch(expected)
