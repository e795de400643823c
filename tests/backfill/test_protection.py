"""What a backfill does not do to its source: no large reads, no long queue, no end of the slot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from cdc_core.backfill import reading
from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.results import BackfillProgress
from cdc_core.backfill.worker import Backfill
from cdc_core.errors import SourceError
from cdc_core.source import reading_connection
from cdc_core.source.load import LoadWatch
from cdc_core.staging.backfills import BackfillLedger
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import make_request, run_backfills
from orchestration.capture.own_capture import ensuring_capture
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

T = TableName("public", "t")
KB = 1 << 10


class Run:
    """A backfill of table t on a thread, with capture beside it."""

    def __init__(self, pipeline: Pipeline, look: Callable[[], str | None] = lambda: None) -> None:
        self.settings = pipeline.load_settings()
        self.states: list[BackfillState] = []
        self.result: BackfillState | None = None
        self.stop = threading.Event()
        self.sharing = BackfillLimits(2, look=look)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        wanted = make_request(self.settings, T, chunk_rows=50_000)
        with ensuring_capture(self.settings, self.stop):
            backfill = Backfill(
                self.settings.lake,
                wanted,
                sharing=self.sharing,
                stop=self.stop,
                on_progress=lambda progress: self.states.append(progress.state),
            )
            self.result = backfill.run()

    def finish(self) -> None:
        self.thread.join()
        assert self.result is BackfillState.DONE


def test_no_chunk_is_larger_than_memory_allows_whatever_its_rows_are(
    pipeline: Pipeline, database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("insert into t select i, 'small' from generate_series(1, 500) i")
    database18.execute("analyze t")
    # Since then they have become large, as no statistics say.
    wide = f"select i, repeat(md5(i::text), {100 * KB // 32}) from generate_series(501, 560) i"
    database18.execute(f"insert into t {wide}")
    monkeypatch.setattr(reading, "MAX_BYTES", 1 << 20)
    Run(pipeline).finish()
    ledger = BackfillLedger(pipeline.load_settings().lake.root)
    (report,) = ledger.read_all()
    assert (report.rows, report.state) == (560, BackfillState.DONE)
    assert report.chunks >= 6
    widths = [len(row["values"][1]) for row in read_changes(pipeline.root, "public.t", "read")]
    assert len(widths) == 560, "a row was read twice"
    assert fold(pipeline.root, "public.t") == read_source(database18, "t")


def test_a_chunk_does_not_stand_in_the_queue_of_locks_for_long(
    pipeline: Pipeline,
    database18: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database18.execute("create table t (id int primary key, v text)")
    database18.execute("insert into t select i, 'v' from generate_series(1, 9) i")
    monkeypatch.setattr(reading_connection, "_LOCK_S", 0.2)
    pipeline.start_streaming()
    with closing(psycopg.connect(database18.dsn)) as reader:
        reader.execute("select count(*) from t")
        altering = threading.Thread(target=lambda: database18.execute("alter table t add n int"))
        altering.start()
        waits = "select 1 from pg_locks where not granted and mode = 'AccessExclusiveLock'"
        wait_for(lambda: database18.query(waits), 60, "the ALTER TABLE in the queue")
        run = Run(pipeline)
        wait_for(
            lambda: any("lock timeout" in str(reason) for reason in list_reasons(caplog)),
            deadline_s=30,
            what="the chunk to give up",
        )
        # It waits outside the queue: whoever wants the table waits for the ALTER TABLE alone.
        reader.commit()
    altering.join()
    run.finish()
    assert {len(row["values"]) for row in read_changes(pipeline.root, "public.t", "read")} == {3}


def list_reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "fields", {}).get("reason", "") for record in caplog.records]


def test_nothing_is_read_while_the_source_is_behind(
    pipeline: Pipeline, database18: Database
) -> None:
    database18.execute("create table t (id int primary key)")
    database18.execute("insert into t select generate_series(1, 50)")
    settings = pipeline.load_settings()
    source = settings.source.model_copy(update={"slot_budget": 64 << 20})
    with closing(LoadWatch(source, lambda: None, most_percent=50, most_lag=1 << 30)) as watch:
        assert watch.find_reason() is None
        database18.query("select pg_logical_emit_message(false, 'x', repeat('x', 40 << 20))")
        reason = watch.find_reason()
        assert reason is not None
        assert "% of its budget; the limit for reading is 50 %" in reason
    with closing(
        LoadWatch(settings.source, lambda: None, most_percent=100, most_lag=10 << 20)
    ) as watch:
        behind = watch.find_reason()
        assert behind is not None
        assert "of WAL are not staged yet; the limit for reading is 10MB" in behind
    found: list[str | None] = [reason]
    run = Run(pipeline, look=lambda: found[-1])
    ledger = BackfillLedger(settings.lake.root)
    wait_for(
        lambda: [report.state for report in ledger.read_all()] == [BackfillState.HELD],
        deadline_s=60,
        what="the backfill to be held",
    )
    (report,) = ledger.read_all()
    assert (report.reason, report.rows) == (reason, 0)
    found.append(None)
    run.finish()
    held = run.states.index(BackfillState.HELD)
    assert run.states[held + 1] is BackfillState.RUNNING
    assert fold(pipeline.root, "public.t") == read_source(database18, "t")


def test_a_table_that_fails_keeps_no_other_from_being_read(
    pipeline: Pipeline, database18: Database
) -> None:
    names = [TableName("public", name) for name in ("a", "missing", "b")]
    for name in ("a", "b"):
        database18.execute(f"create table {name} (id int primary key)")
        database18.execute(f"insert into {name} select generate_series(1, 10)")
    seen: dict[TableName, BackfillProgress] = {}
    with pytest.raises(SourceError, match=r"public\.missing is not in publication"):
        run_backfills(
            pipeline.load_settings(),
            names,
            chunk_rows=4,
            parallel=2,
            stop=threading.Event(),
            on_progress=seen.__setitem__,
        )
    assert {str(table): (p.rows, p.state) for table, p in seen.items()} == {
        "public.a": (10, BackfillState.DONE),
        "public.b": (10, BackfillState.DONE),
    }
