"""What no waiting cures needs a person: a wrong statement of ours, a missing right."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg
import pytest

from cdc_core.backfill import request, worker
from cdc_core.errors import Retry, SourceError
from cdc_core.settings import load_settings
from cdc_core.source.connection import open_connection, source_errors
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import Database


@pytest.mark.parametrize(
    ("statement", "parameters", "retry"),
    [
        # The driver refuses it before the server sees it: there is no SQLSTATE.
        ("select '100%' = %s", ["a"], Retry.AFTER_FIX),
        ("select %s", [], Retry.AFTER_FIX),
        ("select %s", ["a\0b"], Retry.AFTER_FIX),
        ("selct 1", None, Retry.AFTER_FIX),
        ("select * from nowhere", None, Retry.AFTER_FIX),
        ("select pg_terminate_backend(pg_backend_pid())", None, Retry.LATER),
    ],
)
def test_a_wrong_statement_needs_a_person_and_a_lost_connection_does_not(
    pipeline: Pipeline, statement: str, parameters: list[str] | None, retry: Retry
) -> None:
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    with (
        closing(open_connection(settings.source)) as connection,
        pytest.raises(SourceError) as raised,
        source_errors("look"),
    ):
        connection.execute(statement.encode(), parameters)
    assert raised.value.retry is retry


def test_a_backfill_with_a_wrong_statement_of_ours_ends_with_the_reason(
    pipeline: Pipeline, database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database18.execute("create table t (id int primary key)")

    def resolve(_: request.BackfillRequest) -> request.Resolved:
        with source_errors("read the size of public.t"):
            raise psycopg.ProgrammingError("only '%s', '%b', '%t' are allowed as placeholders")

    monkeypatch.setattr(worker, "resolve", resolve)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    stop = threading.Event()
    # Where it is waited for after all, the test ends with another outcome.
    late = threading.Timer(DEADLINE_S / 4, stop.set)
    late.start()
    try:
        with pytest.raises(SourceError, match="read the size of") as raised:
            run_backfills(
                settings, [TableName("public", "t")], chunk_rows=10, parallel=1, stop=stop
            )
    finally:
        late.cancel()
    assert raised.value.exit_code == 4
    assert "report" in raised.value.fix
