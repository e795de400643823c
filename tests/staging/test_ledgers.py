"""Ledgers keep what several tables write at once, and find and order what was written."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from cdc_core.lake_storage import ledgers
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.ledgers import append_numbered, find_newest, replace_rows
from cdc_core.spooled import WHOLE, Scope
from cdc_core.staging.backfills import BackfillLedger, BackfillReport, Begun, _add_row
from cdc_core.staging.orders import Orders
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Lsn, Position, TableName
from tests.lakes import locate_lake, on_disk

START = Position(1, Lsn(100), 0)


def make_begun(table: str = "t", scope: Scope = WHOLE) -> Begun:
    return Begun(uuid.uuid4().hex, TableName("public", table), START, scope)


def test_the_first_rows_of_several_tables_at_once_are_all_kept(tmp_path: Path) -> None:
    tables = [f"t{number}" for number in range(8)]
    barrier = Barrier(len(tables))

    def begin(table: str) -> None:
        barrier.wait()
        BackfillLedger(locate_lake(tmp_path)).record_begun(make_begun(table), 5)

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(begin, tables))
    assert set(BackfillLedger(locate_lake(tmp_path)).read_newest()) == {
        f"public.{table}" for table in tables
    }


def test_a_commit_whose_reply_was_lost_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, schema = locate_lake(tmp_path / "l"), pa.schema({"k": pa.int64(), "number": "int64"})

    def lose_reply(*of: Any, **more: Any) -> None:
        write_deltalake(*of, **more)
        raise CommitFailedError("another has this version")

    monkeypatch.setattr(ledgers, "write_deltalake", lose_reply)
    for key in (1, 2):  # The first one creates the ledger.
        append_numbered(folder, [{"k": key}], schema)
    assert replace_rows(open_delta(folder), folder, [{"k": 2, "number": 1}], schema)
    rows = open_delta(folder).to_pyarrow_table().to_pylist()
    assert rows == [{"k": 2, "number": 1}]
    assert open_delta(folder).version() == 2


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("paused stopped", "paused"),
        ("paused held running", "paused"),
        ("paused resumed", "resumed"),
        ("paused cancelled resumed", "resumed"),
        ("cancelled paused stopped", "cancelled"),
        ("cancelled done", "done"),
        ("done cancelled paused resumed", "done"),
        ("held running stopped", "stopped"),
    ],
)
def test_a_state_that_lasts_is_ended_only_by_what_ends_it(
    tmp_path: Path, told: str, state: str
) -> None:
    ledger, begun = BackfillLedger(locate_lake(tmp_path)), make_begun()
    ledger.record_begun(begun, 5)
    for one in told.split():
        ledger.record_state(begun, BackfillState(one))
    (report,) = ledger.read_all()
    assert report.state == state


def test_a_row_counts_unless_a_state_that_lasts_must_not_be_ended_by_it() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    ends = {
        BackfillState.PAUSED: {
            *(BackfillState.RESUMED, BackfillState.CANCELLED, BackfillState.DONE),
        },
        BackfillState.CANCELLED: {BackfillState.RESUMED, BackfillState.DONE},
        BackfillState.DONE: set(),
    }
    for old, new in product(BackfillState, BackfillState):
        report = BackfillReport(make_begun(), old, at, at, 5)
        row = {"chunk": None, "state": new.value, "at": at, "reason": None}
        found = _add_row(report, row).state
        assert found is (new if new in ends.get(old, {new}) else old), (old, new)


def test_what_is_unfinished_is_found_by_its_part_of_the_table(tmp_path: Path) -> None:
    ledger = BackfillLedger(locate_lake(tmp_path))
    whole, part = make_begun(), make_begun(scope=Scope(("1",), None, "a > 2"))
    for begun in (whole, part):
        ledger.record_begun(begun, 5)
    ledger.record_state(whole, BackfillState.DONE)
    assert ledger.find_unfinished(whole.table, WHOLE) is None
    found = ledger.find_unfinished(part.table, part.scope)
    assert found is not None
    assert found.begun == part
    assert ledger.find_unfinished(part.table, Scope(("1",))) is None


def test_orders_are_those_given_since_the_last_look_to_this_backfill(tmp_path: Path) -> None:
    ledger, own, other = BackfillLedger(locate_lake(tmp_path)), make_begun(), make_begun("u")
    ledger.record_begun(own, 5)
    ledger.record_state(own, BackfillState.PAUSED)
    orders = Orders(locate_lake(tmp_path), own.id)
    assert orders.read() is None
    ledger.record_state(other, BackfillState.CANCELLED)
    assert orders.read() is None
    ledger.record_state(own, BackfillState.PAUSED)
    ledger.record_state(own, BackfillState.HELD)
    assert orders.read() is BackfillState.PAUSED
    ledger.record_state(own, BackfillState.PAUSED)
    ledger.record_state(own, BackfillState.RESUMED)
    assert orders.read() is BackfillState.RESUMED
    assert orders.read() is None


@on_disk
def test_the_newest_wanted_row_of_a_ledger_is_found_in_whatever_file_it_is(
    tmp_path: Path,
) -> None:
    def is_of_kind(kind: int, row: Mapping[str, Any]) -> bool:
        return bool(row["kind"] == kind)

    chance = random.Random(20261127)
    folder = locate_lake(tmp_path / "ledger")
    schema = pa.schema([("kind", pa.int64()), ("number", pa.int64())])
    assert find_newest(folder, schema) is None
    for _ in range(40):
        append_numbered(folder, [{"kind": chance.randrange(6)}], schema)
        if chance.random() < 0.1:
            DeltaTable(folder.uri).optimize.compact()
        rows = DeltaTable(folder.uri).to_pyarrow_table().to_pylist()
        for kind in range(6):
            is_wanted = partial(is_of_kind, kind)
            expected = max(filter(is_wanted, rows), key=lambda row: row["number"], default=None)
            assert find_newest(folder, schema, is_wanted) == expected
