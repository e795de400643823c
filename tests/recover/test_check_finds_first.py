"""`walgate check` finds what capture refuses, in capture's words; it changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.histories.test_history_14_restored_server import copy_cold, put_back
from tests.postgres_server import PostgresServer
from tests.recover.recovering import change, fill
from tests.walgate_command import run_walgate

CODE = "log_not_continued"
_NOW = re.compile(r"is at [0-9A-F]+/[0-9A-F]+")


@pytest.fixture
def filled(
    private_postgres: Callable[..., PostgresServer], make_pipeline: Callable[..., Pipeline]
) -> Pipeline:
    """Lend a pipeline on a server of its own, with something in its log."""
    pipeline = make_pipeline(private_postgres(18).create_database("shop"))
    fill(pipeline)
    return pipeline


def read_refusals(pipeline: Pipeline) -> list[dict[str, str]]:
    """Run the check, whose exit code must agree with its answer; what it says of the log."""
    answer = run_walgate("check", "--json", folder=pipeline.folder)
    problems = json.loads(answer.stdout)["problems"]
    has_errors = any(problem["severity"] == "error" for problem in problems)
    assert answer.exit_code == (1 if has_errors else 0), answer
    return [problem for problem in problems if problem["code"] == CODE]


def require_found(pipeline: Pipeline, said: str) -> None:
    """The check says what capture then ends with, word for word but for where the server is."""
    slot = pipeline.slot_facts()
    (refusal,) = read_refusals(pipeline)
    # The server frees the slot a moment after the check has closed its connection.
    wait_for(lambda: pipeline.slot_facts() == slot, 60, "the slot to be as it was")
    assert said in refusal["what"]
    assert refusal["severity"] == "error"
    answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
    assert answer.exit_code == 4, answer
    complaint = _NOW.sub("is at", answer.complaints[-1])
    assert _NOW.sub("is at", refusal["what"]) in complaint
    assert refusal["fix"] in complaint


def test_a_sound_pipeline_is_ready_before_while_and_after_it_streams(pipeline: Pipeline) -> None:
    assert read_refusals(pipeline) == []
    fill(pipeline)
    change(pipeline)
    assert read_refusals(pipeline) == []
    capture = pipeline.start_streaming()
    for _ in range(3):
        change(pipeline)
        assert read_refusals(pipeline) == []
    pipeline.finish(capture)
    assert read_refusals(pipeline) == []
    pipeline.catch_up()


def test_a_slot_that_was_dropped_and_made_again_is_found(filled: Pipeline) -> None:
    change(filled)
    filled.make_slot_again()
    require_found(filled, "past the staged LSN")


def test_a_server_that_went_back_in_time_is_found(filled: Pipeline) -> None:
    server = filled.database.server
    copy_cold(server)
    change(filled)
    filled.catch_up()
    put_back(server)
    require_found(filled, "it went back in time")
    for _ in range(2):
        change(filled)
    server.execute("postgres", "create table filler as select generate_series(1, 3000) i")
    assert filled.current_lsn() > filled.staged()
    require_found(filled, "the server's history is not the one that was staged")


def test_another_server_and_a_log_that_is_gone_are_found(
    filled: Pipeline, private_postgres: Callable[..., PostgresServer]
) -> None:
    other = private_postgres(18).create_database(filled.database.name)
    other.execute("create publication walgate for all tables")
    other.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [filled.slot])
    ours = filled.database
    filled.database = other
    filled.write_configuration(other.dsn)
    require_found(filled, "system identifier")
    filled.database = ours
    filled.write_configuration(ours.dsn)
    assert read_refusals(filled) == []
    filled.lake.remove_folder()
    require_found(filled, "the log is gone from")
