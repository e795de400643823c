"""A pipeline that something happens to, and what brings it back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from cdc_core.settings import Settings, load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from orchestration.recovery.recover import Recovery, plan_recovery, recover
from tests.backfill.folded_log import fold, read_source
from tests.fix_pipeline import Pipeline
from tests.walgate_command import Answer, run_walgate

ORDERS = TableName("public", "orders")


def read_settings(pipeline: Pipeline) -> Settings:
    """The pipeline's settings."""
    return load_settings(pipeline.folder / "walgate.toml", pipeline.environment)


def fill(pipeline: Pipeline) -> None:
    """Make a table, with rows that the log has."""
    database = pipeline.database
    database.execute("create table orders (id int primary key, note text, v int default 0)")
    database.execute("insert into orders select i, 'first' from generate_series(1, 30) i")
    pipeline.catch_up()


def change(pipeline: Pipeline) -> None:
    """Change rows of the table in each way."""
    for statement in (
        "update orders set note = note || '.' where id % 3 = 0",
        "delete from orders where id = (select min(id) from orders)",
        "insert into orders select max(id) + 1, 'new' from orders",
    ):
        pipeline.database.execute(statement)


def lose_slot(pipeline: Pipeline) -> None:
    """Have the server give the slot up; it must allow it 16 MB."""
    for _ in range(5):
        change(pipeline)
        pipeline.database.server.execute("postgres", "select pg_switch_wal()")
    pipeline.database.server.execute("postgres", "checkpoint")


def recover_whole(pipeline: Pipeline, *said: str) -> Recovery:
    """Recover, by what must be found, read every table again, and compare with the source."""
    settings = read_settings(pipeline)
    plan = plan_recovery(settings)
    for text in said:
        assert text in " ".join(plan.breaks), plan.breaks
    assert len(list(recover(settings, plan))) >= 4
    assert plan_recovery(settings).breaks == ()
    require_whole(pipeline)
    return plan


def require_whole(pipeline: Pipeline) -> None:
    """Read the table again and change it; log and source must have the same rows."""
    run_backfills(
        read_settings(pipeline), [ORDERS], chunk_rows=7, parallel=2, stop=threading.Event()
    )
    change(pipeline)
    pipeline.catch_up()
    require_equal(pipeline)


def require_equal(pipeline: Pipeline) -> None:
    """The log leaves what the source has."""
    source = read_source(pipeline.database, "orders")
    assert source
    assert fold(pipeline.root, str(ORDERS)) == source


def run_recover(pipeline: Pipeline, *options: str, **environment: str) -> Answer:
    """Run the command."""
    found: Mapping[str, str] = pipeline.environment | environment
    return run_walgate("recover", *options, folder=pipeline.folder, environment=found)


def list_files(folder: Path) -> set[Path]:
    """Every file below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}
