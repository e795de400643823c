"""A worker never records a state that must not follow the state that it knows."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.request import BackfillRequest
from cdc_core.backfill.results import BackfillProgress
from cdc_core.backfill.worker import Backfill
from cdc_core.settings import LakeSettings, SourceSettings
from cdc_core.staging.backfills import BackfillLedger, Begun
from cdc_core.table_states import BackfillState, IllegalMove
from cdc_core.vocabulary import Lsn, Position, TableName
from tests.lakes import locate_lake

T = TableName("public", "t")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (BackfillState.DONE, BackfillState.STOPPED),
        (BackfillState.STOPPED, BackfillState.RUNNING),
        (BackfillState.RUNNING, BackfillState.BEGUN),
    ],
)
def test_an_illegal_move_raises_and_neither_ledger_nor_progress_changes(
    tmp_path: Path, old: BackfillState, new: BackfillState
) -> None:
    lake = locate_lake(tmp_path)
    ledger, begun = BackfillLedger(lake), Begun("a" * 32, T, Position(1, Lsn(100), 0))
    ledger.record_begun(begun, 5)
    reported: list[BackfillProgress] = []
    worker = Backfill(
        LakeSettings(root=lake),
        BackfillRequest(SourceSettings(dsn="dbname=x"), lambda: None, T, 10, lambda _: None),
        sharing=BackfillLimits(1),
        stop=threading.Event(),
        on_progress=reported.append,
    )
    worker._begun, worker.progress = begun, replace(worker.progress, state=old)
    with pytest.raises(IllegalMove):
        worker._record_state(new)
    assert (worker.progress.state, reported) == (old, [])
    (report,) = ledger.read_all()
    assert report.state is BackfillState.BEGUN
