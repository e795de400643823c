"""Partitions that are published as tables of their own, after a disaster."""

from __future__ import annotations

from orchestration.recovery.recover import plan_recovery, recover
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Lake
from tests.fix_pipeline import Pipeline
from tests.walgate_command import run_walgate

LEAF = "public.leaf"


def test_a_partition_that_is_published_apart_is_read_again_after_its_slot_was_lost(
    pipeline: Pipeline,
) -> None:
    """Such a partition was read whole before, and changed while no slot listened."""
    pipeline.database.execute(
        "create table root (id int primary key, v text) partition by list (id);"
        " create table leaf partition of root for values in (1);"
        " insert into root values (1, 'a')"
    )
    pipeline.catch_up()
    answer = run_walgate("backfill", "--all", folder=pipeline.folder)
    assert answer.exit_code == 0, answer
    assert LEAF in answer.stdout
    settings = pipeline.load_settings()
    assert read_completeness(Lake.of(settings)).find_incomplete(LEAF) is None
    pipeline.database.query("select pg_drop_replication_slot(%s)", [pipeline.slot])
    pipeline.database.execute("update root set v = 'unheard of'")
    plan = plan_recovery(settings)
    assert LEAF in {str(table) for table in plan.tables}
    list(recover(settings, plan))
    lack = read_completeness(Lake.of(settings)).find_incomplete(LEAF)
    assert lack is not None
    assert "a recovery began a new epoch" in lack.reason
