"""A backfill is paused, resumed and cancelled from other processes, and goes on with the rest."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_core.backfill.results import BackfillProgress
from cdc_core.settings import load_settings
from cdc_core.staging.backfills import BackfillLedger
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from orchestration.backfill.orders import Order, give_order
from orchestration.cli.main import run_command
from orchestration.status.backfills import describe_backfills
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import Answer, run_walgate

T = TableName("public", "t")
ROWS = 800
CHUNK = 20
# What is read is in the log a moment later: an order finds the table half read, not wholly.
SLOWLY = {"WALGATE_BACKFILL__ROWS_PER_SECOND": "100"}


class Worker:
    """A backfill of table t on a thread, which acts at chunks."""

    def __init__(self, pipeline: Pipeline, at_chunk: dict[int, Callable[[], object]]) -> None:
        environment = SLOWLY if at_chunk else {}
        self.settings = load_settings(pipeline.folder / "walgate.toml", environment)
        self.at_chunk = at_chunk
        self.done: dict[TableName, BackfillProgress] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.done = run_backfills(
            self.settings,
            [T],
            chunk_rows=CHUNK,
            parallel=2,
            stop=self.stop,
            on_progress=self._act,
        )

    def _act(self, _: TableName, progress: BackfillProgress) -> None:
        if act := self.at_chunk.pop(progress.chunks, None):
            act()

    def finish(self) -> bool:
        self.thread.join()
        return T in self.done


def order(pipeline: Pipeline, *arguments: str) -> Answer:
    return run_walgate("backfill", *arguments, folder=pipeline.folder)


def read_status(pipeline: Pipeline) -> dict[str, Any]:
    """What `walgate status` says of the one backfill."""
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    (backfill,) = describe_backfills(settings.lake)
    return backfill


def list_connections(database: Database) -> list[tuple[Any, ...]]:
    return database.query(
        "select application_name from pg_stat_activity"
        " where application_name in ('walgate backfill', 'walgate steps')"
    )


def count_steps(pipeline: Pipeline, name: str) -> int:
    marks = read_changes(pipeline.root, None, "mark")
    return sum(json.loads(mark["detail"] or "{}").get("step") == name for mark in marks)


def make_table(database: Database) -> None:
    database.execute("create table t (id int primary key, v text)")
    database.execute(f"insert into t select i, 'old' from generate_series(1, {ROWS}) i")


@pytest.mark.parametrize("record_s", [0, 3600])
def test_a_backfill_is_paused_resumed_cancelled_and_run_for_the_rest(
    pipeline: Pipeline, database18: Database, monkeypatch: pytest.MonkeyPatch, record_s: int
) -> None:
    monkeypatch.setattr("cdc_core.backfill.worker._RECORD_S", record_s)
    make_table(database18)
    said: list[Answer] = []
    worker = Worker(pipeline, {4: lambda: said.append(order(pipeline, "pause", "public.t"))})
    wait_for(lambda: said, deadline_s=60, what="the order to pause")
    assert (said[0].exit_code, said[0].stdout) == (0, "public.t\tpaused\n")
    # It waits without a lock, a snapshot or a connection, and capture has forgotten it.
    wait_for(lambda: not list_connections(database18), 60, "the connections to end")
    wait_for(lambda: count_steps(pipeline, "end") == 1, 60, "capture to forget")
    told = read_status(pipeline)
    assert told["state"] == "paused"
    assert 4 <= told["chunks"] < ROWS // CHUNK
    assert worker.thread.is_alive()
    database18.execute("update t set v = 'while paused' where id % 7 = 0")
    database18.execute("do $$ begin lock table t in access exclusive mode nowait; end $$")
    worker.at_chunk[12] = lambda: said.append(order(pipeline, "cancel", "--all"))
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    (given,) = give_order(settings.lake, Order.RESUME, None)
    assert (given.state, given.note) == (BackfillState.RESUMED, None)
    assert not worker.finish()
    assert said[1].stdout == "public.t\tcancelled\n"
    assert "` resumes it" in said[1].stderr
    told = read_status(pipeline)
    assert told["state"] == "cancelled"
    assert 12 <= told["chunks"] < ROWS // CHUNK
    # It is over: there is nothing to pause, and the next run brings the rest.
    assert give_order(settings.lake, Order.PAUSE, [T]) == []
    brought = {row["values"][0] for row in read_changes(pipeline.root, "public.t", "read")}
    assert Worker(pipeline, {}).finish()
    pipeline.catch_up()
    assert fold(pipeline.root, "public.t") == read_source(database18, "t")
    keys = [row["values"][0] for row in read_changes(pipeline.root, "public.t", "read")]
    assert len(keys) == len(set(keys)), "what was brought was read again"
    assert len(brought) < len(keys)
    told = read_status(pipeline)
    assert (told["state"], told["rows"]) == ("done", ROWS)


def test_a_paused_backfill_whose_process_ends_stays_paused_until_it_is_run(
    pipeline: Pipeline, database18: Database
) -> None:
    make_table(database18)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    ledger = BackfillLedger(settings.lake.root)

    def pause() -> None:
        (report,) = ledger.read_all()
        ledger.record_state(report.begun, BackfillState.PAUSED)

    worker = Worker(pipeline, {3: pause})
    wait_for(lambda: not list_connections(database18) and not worker.at_chunk, 60, "the pause")
    worker.stop.set()
    assert not worker.finish()
    (report,) = ledger.read_all()
    assert report.state is BackfillState.PAUSED
    assert Worker(pipeline, {}).finish()
    (report,) = ledger.read_all()
    assert (report.state, report.rows) == (BackfillState.DONE, ROWS)


def test_what_is_asked_wrongly_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of this process is the tests' own.
    monkeypatch.setattr("orchestration.cli.main.start_logging", lambda *_, **__: None)
    file = tmp_path / "walgate.toml"
    file.write_text('[source]\ndsn = "host=/nowhere dbname=x"\n[lake]\nroot = "lake"\n')
    wrong = {
        "pause": "expected tables or --all, found neither",
        "cancel public.t --all": "expected tables or --all, found both",
        "resume t": "not a table name",
        "pause public.t --where true": "takes tables or --all, and no other option",
        "public.t public.u --from 1": "are given for 2 tables, expected one",
    }
    for arguments, complaint in wrong.items():
        assert run_command(["backfill", *arguments.split(), "--config", str(file)]) == 2
        said = capsys.readouterr().err
        assert said.count("walgate: ") == 1
        assert complaint in said
    assert run_command(["backfill", "pause", "public.t", "--config", str(file)]) == 1
    said = capsys.readouterr().err
    assert "there is no unfinished backfill of public.t to pause" in said
