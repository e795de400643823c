"""A condition that fails at a row ends the backfill, and nobody is shown what the row holds."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
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
def test_a_condition_that_fails_at_a_row_needs_a_person_and_shows_no_value(
    database18: Database, pipeline: Pipeline, where: str, said: str
) -> None:
    database18.execute("create table t (id int primary key, note text)")
    database18.execute("insert into t values (1, '7'), (2, %s)", [CANARY])
    database18.execute(_FAILING)
    database18.execute(_CHECKING)
    answer = run_walgate(
        "--debug", "backfill", "public.t", "--where", where, folder=pipeline.folder
    )
    assert answer.exit_code == 4, answer
    assert said in answer.complaints[-1]
    assert "change the condition" in answer.complaints[-1]
    assert CANARY not in answer.stdout + answer.stderr
    assert not read_changes(pipeline.root, "public.t", "read")
    for kept in (pipeline.root / "ledger").rglob("*"):
        assert not (kept.is_file() and CANARY.encode() in kept.read_bytes()), kept
