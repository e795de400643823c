"""The first reading of a table that was just loaded, beside a slot that may keep little WAL.

Whoever reads a row first marks its page. With checksums, or with wal_log_hints, the server then
writes the whole page to the WAL. One fast reading of such a table cost the slot within seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from cdc_core.backfill.results import BackfillProgress
from cdc_core.errors import WalgateError, WrongServer
from cdc_core.source.connection import open_connection
from cdc_core.source.first_reading import FirstReading
from cdc_core.source.primary import History, read_history
from cdc_core.staging.backfills import BackfillLedger
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from orchestration.recovery.recover import plan_recovery
from orchestration.verification.waiting import read_first
from tests.backfill.test_protection import T
from tests.fix_pipeline import Pipeline
from tests.postgres_server import PostgresServer
from tests.walgate_command import run_walgate

ROWS = 60_000
# Of about 1 KB each, in another order than that of the key: twice what the slot may keep.
LOAD = f"""
    create table t (id int primary key, v text) with (autovacuum_enabled = off);
    insert into t select (i * 7919::bigint) % 60013, repeat(md5(i::text), 30)
    from generate_series(1, {ROWS}) i
"""
SMALL = {
    "full_page_writes": "on",
    "wal_log_hints": "on",
    "max_slot_wal_keep_size": "32MB",
    "min_wal_size": "32MB",
    "max_wal_size": "32MB",
}


@pytest.fixture(params=[pytest.param(15, marks=pytest.mark.soak), 18])
def loaded(
    request: pytest.FixtureRequest,
    private_postgres: Callable[..., PostgresServer],
    make_pipeline: Callable[..., Pipeline],
) -> Pipeline:
    """Lend a pipeline whose slot is younger than its table, of which no row was ever read."""
    pipeline = make_pipeline(private_postgres(request.param, **SMALL).create_database("shop"))
    pipeline.database.execute(LOAD)
    pipeline.make_slot_again()
    return pipeline


def test_it_is_announced_and_costs_no_slot(loaded: Pipeline) -> None:
    for command in ("check", "backfill --dry-run public.t"):
        answer = run_walgate(*command.split(), folder=loaded.folder)
        assert "public.t 6" in answer.stdout + answer.stderr, answer
        assert "the slot may keep 32MB" in answer.stdout + answer.stderr
    reasons: list[str] = []

    def note(_: TableName, progress: BackfillProgress) -> None:
        if progress.state is BackfillState.HELD:
            reasons.append(str(progress.reason))
            # Others see it, and can pause or cancel it.
            (report,) = BackfillLedger(loaded.lake).read_all()
            assert report.state is BackfillState.HELD

    settings = loaded.load_settings()
    run_backfills(
        settings,
        [T],
        chunk_rows=settings.backfill.chunk_rows,
        parallel=settings.backfill.parallel,
        stop=threading.Event(),
        on_progress=note,
    )
    assert find_status(loaded) != "lost"
    (report,) = BackfillLedger(settings.lake.root).read_all()
    assert (report.rows, report.state) == (ROWS, BackfillState.DONE)
    assert any("more of WAL" in reason for reason in reasons), reasons
    # A recovery has all tables read again.
    loaded.database.query("select pg_drop_replication_slot(%s)", [loaded.slot])
    costly = plan_recovery(settings).costly
    assert costly is not None
    assert "public.t 6" in costly


def test_it_proves_its_server_at_each_use_and_reads_another_from_its_first_page(
    loaded: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = loaded.load_settings().source
    with closing(open_connection(source)) as connection:
        here = read_history(connection)
    assert here.timeline is not None
    begun: list[int] = []

    def read_pages(reading: FirstReading, past: int) -> None:
        begun.append(reading._page)
        _READ_PAGES(reading, past)

    monkeypatch.setattr(FirstReading, "_read_pages", read_pages)
    expected: list[History | None] = [None]
    first = FirstReading(source, T, find_history=lambda: expected[-1])
    with closing(first):
        first.read_some()
        # A standby was promoted; this server does not know it.
        expected.append(History(here.system_id, here.timeline + 1))
        for _ in range(2):
            with pytest.raises(WrongServer):
                first.read_some()
        expected.append(here)
        first.read_some()
        first.read_some()
    assert begun[:2] == [0, 0]
    assert begun[2] > 0


_READ_PAGES = FirstReading._read_pages


def test_a_verification_waits_for_the_slot_too(loaded: Pipeline) -> None:
    """Beside no capture nothing moves the slot, until somebody stops the verification."""
    stop, said = threading.Event(), []

    def tell(text: str) -> None:
        said.append(text)
        stop.set()

    source = loaded.load_settings().source
    with pytest.raises(WalgateError, match="the verification was stopped"):
        read_first(source, T, lambda: None, stop=stop, tell=tell)
    (line,) = said
    assert line.startswith("public.t: waiting: the slot may keep")
    assert find_status(loaded) != "lost"


def find_status(pipeline: Pipeline) -> str:
    """Give what the server says of the slot's WAL."""
    query = "select wal_status from pg_replication_slots where slot_name = %s"
    ((status,),) = pipeline.database.query(query, [pipeline.slot])
    return str(status)
