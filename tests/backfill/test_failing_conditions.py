"""A condition that fails at a row ends the backfill, and nobody is shown what the row holds."""

from __future__ import annotations

import logging
from pathlib import Path

import dagster as dg
import pytest

from cdc_core.vocabulary import TableName
from orchestration.backfill.asset import build_backfill_asset
from orchestration.runs.known_tables import add_partitions, partition_key
from tests.backfill.folded_log import read_changes
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

CANARY = "c4n4ry-of-a-row"
_FAILING = """
create function fail_at(text) returns bool language plpgsql as $$
begin raise exception 'the value % is refused', $1; end $$
"""
_CHECKING = """
create function check_at(text) returns bool language plpgsql as $$
begin raise check_violation using message = 'the value ' || $1 || ' is refused'; end $$
"""


FAILING = pytest.mark.parametrize(
    ("where", "said"),
    [
        ("note::int > 5", "InvalidTextRepresentation (SQLSTATE 22P02)"),
        ("fail_at(note)", "RaiseException (SQLSTATE P0001)"),
        ("check_at(note)", "CheckViolation (SQLSTATE 23514)"),
        ("note::regclass is not null", "UndefinedTable (SQLSTATE 42P01)"),
        ("current_setting(note) = 'x'", "UndefinedObject (SQLSTATE 42704)"),
        ("length(pg_read_file(note)) > 5", "UndefinedFile (SQLSTATE 58P01)"),
    ],
)


@pytest.fixture
def table(database18: Database, pipeline: Pipeline) -> TableName:
    """Lend a table whose first row, which holds the canary, is where every condition fails."""
    del pipeline  # Its publication and slots are older than the table.
    database18.execute("create table t (id int primary key, note text)")
    database18.execute("insert into t values (1, %s), (2, '7')", [CANARY])
    database18.execute(_FAILING)
    database18.execute(_CHECKING)
    return TableName("public", "t")


@FAILING
def test_a_condition_that_fails_at_a_row_needs_a_person_and_shows_no_value(
    pipeline: Pipeline, table: TableName, where: str, said: str
) -> None:
    answer = run_walgate(
        "--debug", "backfill", str(table), "--where", where, folder=pipeline.folder
    )
    assert answer.exit_code == 4, answer
    assert said in answer.complaints[-1]
    assert "change the condition" in answer.complaints[-1]
    assert CANARY not in answer.stdout + answer.stderr
    assert not read_changes(pipeline.root, str(table), "read")
    require_no_canary(pipeline.root / "ledger")


@FAILING
def test_a_run_whose_condition_fails_at_a_row_shows_no_value_in_dagster(
    pipeline: Pipeline,
    table: TableName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    said: str,
) -> None:
    # As in the process of a run: Python writes what libraries log to standard error.
    monkeypatch.setattr(logging.root, "handlers", [])
    settings = pipeline.load_settings()
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        add_partitions(instance, settings, [table])
        run = dg.materialize(
            [build_backfill_asset(settings)],
            instance=instance,
            partition_key=partition_key(table),
            run_config={"ops": {"backfill": {"config": {"where": where, "dry_run": False}}}},
            raise_on_error=False,
        )
        (failed,) = run.get_step_failure_events()
        assert said in str(failed.step_failure_data)
        assert "change the condition" in str(failed.step_failure_data)
        records = instance.all_logs(run.run_id)
        assert CANARY not in "".join(dg.serialize_value(record) for record in records)
    # The instance keeps events, tags and what the run wrote to standard error.
    (written,) = home.rglob("*.err")
    assert "loop failed" in written.read_text()
    require_no_canary(home)


def require_no_canary(folder: Path) -> None:
    """Fail if a file below a folder holds the text of the row."""
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if CANARY.encode() in path.read_bytes()] == []
