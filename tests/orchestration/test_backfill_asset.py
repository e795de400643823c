"""Asset `backfill` as Dagster runs it: a look first, then the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.asset import build_backfill_asset
from orchestration.runs.keys import AssetKeys
from orchestration.runs.known_tables import add_partitions, find_tables, partition_key
from tests.backfill.folded_log import fold, read_source
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

ODD = TableName("public", 'Odd "name/x')
NOTES = TableName("public", "notes")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Lend an instance of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def run(
    pipeline: Pipeline, instance: dg.DagsterInstance, partition: str | None, **config: Any
) -> dg.ExecuteInProcessResult:
    """Launch the asset for one table."""
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    add_partitions(instance, settings, [NOTES, *find_tables(settings)])
    return dg.materialize(
        [build_backfill_asset(settings)],
        instance=instance,
        partition_key=partition,
        run_config={"ops": {"backfill": {"config": config}}},
        raise_on_error=False,
    )


def materialize(
    pipeline: Pipeline, instance: dg.DagsterInstance, partition: str, **config: Any
) -> dict[str, Any]:
    """Materialize one table; give what the run said of it."""
    result = run(pipeline, instance, partition, **config)
    assert result.success, result.all_events[-1].message
    made = result.asset_materializations_for_node("backfill")
    seen = result.asset_observations_for_node("backfill")
    metadata = made[0].metadata if made else seen[-1].metadata
    return {name: value.value for name, value in metadata.items()}


def test_a_bare_click_says_what_it_would_do_and_the_next_does_it(
    pipeline: Pipeline, instance: dg.DagsterInstance, database18: Database
) -> None:
    database18.execute("create table notes (id bigint primary key, text text)")
    database18.execute("insert into notes select n, 'x' from generate_series(1, 5000) n")
    database18.execute(f"create table {ODD} (id int primary key)".replace("%", "%%"))
    database18.execute("analyze notes")
    notes, odd = partition_key(NOTES), partition_key(ODD)
    assert notes == "public/notes"
    told = materialize(pipeline, instance, notes)
    assert told["dry_run"] is True
    assert (told["rows_estimated"], told["chunks_estimated"]) == (5000, 1)
    assert 40_000 < told["bytes_estimated"] < 500_000
    assert told["minutes_estimated"] < 1
    assert not (pipeline.root / "staging").exists()
    assert instance.fetch_materializations(AssetKeys().backfill, limit=1).records == []
    told = materialize(pipeline, instance, notes, dry_run=False, chunk_rows=1000)
    assert (told["rows"], told["chunks"], told["stale_dropped"]) == (5000, 6, 0)
    assert fold(pipeline.root, "public.notes") == read_source(database18, "notes")
    assert materialize(pipeline, instance, odd, dry_run=False)["rows"] == 0
    # A part is brought, and does not fill the partition.
    part = {"from_key": ["10"], "to_key": ["19"], "dry_run": False}
    assert materialize(pipeline, instance, notes, **part)["rows"] == 10
    assert len(instance.fetch_materializations(AssetKeys().backfill, limit=9).records) == 2
    refused = run(pipeline, instance, notes, where="true; drop table notes", dry_run=False)
    (failure,) = refused.get_step_failure_events()
    assert "public.notes: `where` is not a valid condition" in str(failure.step_failure_data.error)
    assert run(pipeline, instance, notes, action="pause").success


def test_one_run_reads_several_tables_and_fills_the_partition_of_each(
    pipeline: Pipeline, instance: dg.DagsterInstance, database18: Database
) -> None:
    for name in ("notes", "other"):
        database18.execute(f"create table {name} (id bigint primary key)")
        database18.execute(f"insert into {name} select generate_series(1, 700)")
    # It cannot be read, and keeps the others neither from being read nor from being told of.
    database18.execute("create table keyless (id bigint)")
    tables = ["public/keyless", "public/notes", "public/other"]
    result = run(pipeline, instance, None, tables=tables, dry_run=False)
    (failure,) = result.get_step_failure_events()
    assert "public.keyless" in str(failure.step_failure_data.error)
    made = instance.fetch_materializations(AssetKeys().backfill, limit=9).records
    assert sorted(str(one.partition_key) for one in made) == tables[1:]
    for one in made:
        assert one.asset_materialization is not None
        told = {name: value.value for name, value in one.asset_materialization.metadata.items()}
        assert (told["rows"], told["percent"], told["state"]) == (700, 100, "done")
    refused = run(pipeline, instance, None)
    (failure,) = refused.get_step_failure_events()
    assert "no table is chosen" in str(failure.step_failure_data.error)


def test_a_wrong_number_is_refused(
    pipeline: Pipeline, instance: dg.DagsterInstance, database18: Database
) -> None:
    database18.execute("create table notes (id bigint primary key)")
    result = run(pipeline, instance, "public/notes", parallel=0)
    (failure,) = result.get_step_failure_events()
    assert "parallel is 0, expected 1 or more" in str(failure.step_failure_data.error)
    assert instance.fetch_materializations(AssetKeys().backfill, limit=1).records == []
