"""The two jobs as Dagster runs them, in this process, on real parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.assembly import build_definitions
from spark_jobs.lake.lake import Lake, open_table
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.query.sql import answer_query
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

TABLES = """
    create table notes (id bigint primary key, text text);
    create table "Odd ""name" (id int primary key, price numeric(12, 2), tags text[],
        amount numeric, day date default 'infinity');
"""
RULES = """
[tables."public.*"]
types = { amount = "decimal(20,4)" }
"""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Lend an instance of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def make_tables(database: Database) -> None:
    for statement in TABLES.split(";"):
        if statement.strip():
            database.execute(statement)


def run_job(
    pipeline: Pipeline,
    instance: dg.DagsterInstance,
    job: str,
    *,
    config: dict[str, Any],
    assets: list[dg.AssetKey] | None = None,
) -> dg.ExecuteInProcessResult:
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    op = {"replicate": "replicate_changes", "merge": "merge_tables"}[job]
    return (
        build_definitions(settings)
        .resolve_job_def(job)
        .execute_in_process(
            instance=instance,
            run_config={"ops": {op: {"config": config}}},
            asset_selection=assets,
            raise_on_error=False,
        )
    )


def read_metadata(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dict[str, Any]]:
    """Give the metadata of each materialization of an asset, oldest first."""
    records = instance.fetch_materializations(key, limit=100).records
    return [
        {name: value.value for name, value in record.asset_materialization.metadata.items()}
        for record in reversed(records)
        if record.asset_materialization is not None
    ]


def find_key(instance: dg.DagsterInstance, part: str) -> dg.AssetKey:
    (key,) = [key for key in instance.all_asset_keys() if part in key.to_user_string()]
    return key


def test_a_run_stages_for_its_time_and_reports_what_it_staged(
    pipeline: Pipeline, instance: dg.DagsterInstance, database18: Database
) -> None:
    make_tables(database18)
    database18.execute("insert into notes select n, 'x' from generate_series(1, 500) n")
    late = threading.Timer(
        1.0, lambda: database18.execute("insert into notes values (1000, 'late')")
    )
    late.start()
    result = run_job(pipeline, instance, "replicate", config={"run_minutes": 0.1})
    late.join()
    assert result.success
    assert pipeline.require_truth() == 2
    reports = read_metadata(instance, dg.AssetKey(["staging", "changes"]))
    assert sum(report["rows"] for report in reports) >= 501
    last = reports[-1]
    assert last["lag_bytes"] >= 0
    assert last["transactions"] >= 2
    assert "/" in last["staged_lsn"]
    assert isinstance(last["lag_seconds"], float)
    assert isinstance(last["rows_per_second"], float)
    assert last["delta_version"] >= 1


def test_a_run_that_cannot_begin_says_why_in_our_words(
    pipeline: Pipeline, instance: dg.DagsterInstance, database18: Database
) -> None:
    database18.query("select pg_drop_replication_slot(%s)", [pipeline.slot])
    result = run_job(pipeline, instance, "replicate", config={"run_minutes": 1.0})
    assert not result.success
    (failed,) = result.filter_events(lambda event: event.is_step_failure)
    assert f"slot {pipeline.slot} does not exist" in str(failed.step_failure_data)
    assert instance.get_runs()[0].tags["walgate/retry"] == "AFTER_FIX"


def test_a_merge_run_tells_rows_lsn_version_and_columns_of_each_table(
    pipeline: Pipeline,
    instance: dg.DagsterInstance,
    database18: Database,
    spark: SparkSession,
) -> None:
    del spark  # The session that the run's resource then gives.
    make_tables(database18)
    file = pipeline.folder / "walgate.toml"
    file.write_text(file.read_text() + RULES)
    database18.execute("insert into notes select n, 'x' from generate_series(1, 10) n")
    database18.execute("update notes set text = 'y' where id <= 3")
    database18.execute("delete from notes where id = 10")
    database18.execute("""insert into "Odd ""name" values (1, 1.50, '{a,b}')""")
    pipeline.catch_up()
    result = run_job(pipeline, instance, "merge", config={"linger_seconds": 0.0})
    assert result.success
    (notes,) = read_metadata(instance, dg.AssetKey(["tables", "public", "notes"]))
    assert (notes["rows_inserted"], notes["rows_updated"], notes["rows_deleted"]) == (9, 0, 0)
    assert notes["dagster/row_count"] == 9
    assert "/" in notes["merged_lsn"]
    assert notes["merge_seconds"] > 0
    assert notes["written_by"] == "rewrite (1)"
    assert notes["lag_seconds"] > 0
    columns = {column.name: column.type for column in notes["dagster/column_schema"].columns}
    assert (columns["id"], columns["text"]) == ("bigint", "string")
    (odd,) = read_metadata(instance, find_key(instance, "Odd"))
    columns = {column.name: column.type for column in odd["dagster/column_schema"].columns}
    assert (columns["price"], columns["_raw"]) == ("decimal(12,2)", "map<string,string>")
    assert (columns["amount"], columns["_holes"]) == ("decimal(20,4)", "array<string>")
    assert (odd["lossy_values"], odd["lossy_values/day"]) == (1, 1)
    assert notes["lossy_values"] == 0
    (cut,) = read_metadata(instance, dg.AssetKey(["ledger", "cuts"]))
    assert cut["entries"] >= 15
    assert (cut["tables_changed"], cut["tables_halted"]) == (2, 0)
    assert cut["cut_lsn"] == notes["merged_lsn"]

    # A table that nothing happened to is told how it stands, if it was asked for.
    result = run_job(pipeline, instance, "merge", config={"linger_seconds": 0.0})
    assert result.success
    _, notes = read_metadata(instance, dg.AssetKey(["tables", "public", "notes"]))
    assert (notes["rounds"], notes["rows_inserted"]) == (0, 0)
    assert read_metadata(instance, find_key(instance, "Odd"))[-1]["lossy_values/day"] == 1

    # One table alone: the other waits.
    database18.execute("update notes set text = 'z' where id <= 2")
    database18.execute("""update "Odd ""name" set price = 2""")
    pipeline.catch_up()
    chosen = dg.AssetKey(["tables", "public", "notes"])
    result = run_job(pipeline, instance, "merge", config={"linger_seconds": 0.0}, assets=[chosen])
    assert result.success
    assert read_metadata(instance, chosen)[-1]["rows_updated"] == 2
    assert len(read_metadata(instance, find_key(instance, "Odd"))) == 2


def test_a_table_materialized_alone_reads_at_the_newest_cut_together_with_the_others(
    pipeline: Pipeline,
    instance: dg.DagsterInstance,
    database18: Database,
    spark: SparkSession,
) -> None:
    for name in ("notes", "other"):
        database18.execute(f"create table {name} (id int primary key, text text)")
        database18.execute(f"insert into {name} values (1, 'old')")
    pipeline.catch_up()
    nothing_more = {"linger_seconds": 0.0}
    assert run_job(pipeline, instance, "merge", config=nothing_more).success
    # One transaction changes both tables; only one asset is materialized.
    database18.execute("with one as (update notes set text = 'new') update other set text = 'new'")
    pipeline.catch_up()
    chosen = dg.AssetKey(["tables", "public", "notes"])
    run = run_job(pipeline, instance, "merge", config=nothing_more, assets=[chosen])
    assert run.success
    metadata = read_metadata(instance, chosen)[-1]
    lake = Lake.of(pipeline.load_settings())
    bound = find_bound_at(lake, "latest")
    assert str(bound.lsn) == metadata["merged_lsn"]
    # The other Delta table still has the old row: `walgate sql` folds the log over it.
    delta = open_table(lake.locate(TableName("public", "other")))
    assert delta is not None
    assert delta.to_pyarrow_table()["text"].to_pylist() == ["old"]
    query = "select n.text as notes, o.text as other from notes n join other o on n.id = o.id"
    answer = answer_query(spark, lake, query, bound)
    assert [tuple(row) for row in answer.rows.collect()] == [("new", "new")]
    assert (answer.at, answer.halted) == (bound, {})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"run_minutes": 0.0}, "run_minutes is 0.0, expected more than 0"),
        ({"round_rows": 0}, "round_rows is 0, expected more than 0"),
        ({"linger_seconds": -1.0}, "linger_seconds is -1.0, expected 0 or more"),
    ],
)
def test_a_wrong_number_in_the_launchpad_is_named(
    pipeline: Pipeline, instance: dg.DagsterInstance, config: dict[str, Any], expected: str
) -> None:
    result = run_job(pipeline, instance, "merge", config=config)
    (failed,) = result.filter_events(lambda event: event.is_step_failure)
    assert expected in str(failed.step_failure_data)
