"""The queue of whole backfills: who waits, though ledgers and claims change while they are read."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from cdc_core.settings import load_settings
from cdc_core.spooled import WHOLE
from cdc_core.staging.backfills import BackfillLedger, Begun
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.backfill import queue
from orchestration.backfill.queue import QueueReader
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

TABLE = TableName("public", "t")


@pytest.mark.parametrize(
    "step", ["read_completeness", "read_states", "find_cut", "find_read_obstacles", "estimate_size"]
)
def test_a_table_whose_backfill_is_done_in_mid_look_does_not_wait(
    pipeline: Pipeline, database18: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    database18.execute("drop publication walgate")
    database18.execute("create table t (id int primary key)")
    database18.execute("create publication walgate for table t")
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    reader = QueueReader(settings)
    assert [waiting.table for waiting in reader.read()] == [TABLE]

    ledger = BackfillLedger(settings.lake.root)
    begun = Begun(uuid.uuid4().hex, TABLE, Position(1, Lsn(100), 0), WHOLE)
    with ExitStack() as worker:
        worker.enter_context(ChunkFolder(settings.lake.spool).claim(begun.id))
        ledger.record_begun(begun, 1)
        assert QueueReader(settings).read() == []
        read: Callable[..., Any] = getattr(queue, step)

        def end_after(*arguments: Any) -> Any:
            found = read(*arguments)
            if not ledger.read_all()[0].is_over:
                ledger.record_state(begun, BackfillState.DONE, swept=Lsn(200))
                worker.close()
            return found

        monkeypatch.setattr(queue, step, end_after)
        assert QueueReader(settings).read() == []
    assert ledger.read_all()[0].is_over


def test_an_unfinished_backfill_that_nobody_reads_waits(
    pipeline: Pipeline, database18: Database
) -> None:
    database18.execute("drop publication walgate")
    database18.execute("create table t (id int primary key)")
    database18.execute("create publication walgate for table t")
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    ledger = BackfillLedger(settings.lake.root)
    begun = Begun(uuid.uuid4().hex, TABLE, Position(1, Lsn(100), 0), WHOLE)
    ledger.record_begun(begun, 1)
    assert [waiting.table for waiting in QueueReader(settings).read()] == [TABLE]
    ledger.record_state(begun, BackfillState.PAUSED)
    assert QueueReader(settings).read() == []
