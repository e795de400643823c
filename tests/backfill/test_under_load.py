"""A table with rows from before the slot, backfilled while writers change it: equal at rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.request import BackfillRequest
from cdc_core.backfill.results import BackfillProgress
from cdc_core.backfill.worker import Backfill
from cdc_core.settings import load_settings
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.fix_pipeline import Pipeline
from tests.load import prepare, running_load
from tests.postgres_server import Database

SEED = 20261121


def backfill(pipeline: Pipeline, table: str) -> BackfillProgress:
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    wanted = BackfillRequest(
        settings.source, lambda: None, TableName.parse(table), 3000, lambda _: None
    )
    run = Backfill(settings.lake, wanted, sharing=BackfillLimits(2), stop=threading.Event())
    assert run.run() is BackfillState.DONE
    return run.progress


def test_tables_backfilled_under_load_equal_their_source(
    database18: Database, make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    scripts = prepare(database18, tmp_path)
    database18.execute("insert into churn select i, 0, 'old' from generate_series(1, 2200) i")
    database18.execute("insert into scrap select i, 'old' from generate_series(1, 500) i")
    pipeline = make_pipeline(database18)
    pipeline.start_streaming()
    done = {}
    with running_load(database18, scripts, seed=SEED, rate=200):
        for table in ("public.pgbench_accounts", "public.churn", "public.scrap", "public.side"):
            done[table] = backfill(pipeline, table)
    pipeline.finish(pipeline.children[0])
    pipeline.catch_up()
    for table in done:
        source = read_source(database18, table)
        assert source, table
        assert fold(pipeline.root, table) == source, table
    assert done["public.pgbench_accounts"].chunks >= 30
    # What is read has the very shape that the stream announces.
    entries = read_changes(pipeline.root, "public.pgbench_accounts")
    assert {entry["op"] for entry in entries} == {"read", "update", "sweep"}
    assert len({entry["relation_version"] for entry in entries}) == 1
    assert not list(pipeline.spool.glob("*-*"))
