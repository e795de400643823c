"""The newest epoch, for who asks for it again and again."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_core.errors import StagingError
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.layout import EPOCHS_SCHEMA
from cdc_core.staging.epochs import Epoch, EpochReader
from cdc_core.staging.tables import append_rows, open_table
from tests.lakes import locate_lake, on_disk


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for every reading of the table."""
    seen: list[None] = []
    real = EpochReader._open

    def count(reader: EpochReader) -> object:
        seen.append(None)
        return real(reader)

    monkeypatch.setattr(EpochReader, "_open", count)
    return seen


@on_disk
def test_a_lake_without_a_log_has_no_epoch_until_it_has_one(tmp_path: Path) -> None:
    reader = EpochReader(locate_lake(tmp_path))
    assert reader.read() is None
    add_epoch(tmp_path, 1)
    assert require(reader).epoch == 1


@on_disk
def test_the_table_is_read_again_only_after_a_commit(tmp_path: Path, opened: list[None]) -> None:
    add_epoch(tmp_path, 1)
    reader = EpochReader(locate_lake(tmp_path))
    assert [require(reader).epoch for _ in range(3)] == [1, 1, 1]
    assert len(opened) == 1
    add_epoch(tmp_path, 1, timeline=2)
    assert [require(reader).timeline for _ in range(3)] == [2, 2, 2]
    assert len(opened) == 2


@on_disk
def test_a_commit_counts_that_the_clock_of_the_files_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalPlace, "read_change", lambda _: (1, 1))
    add_epoch(tmp_path, 1)
    reader = EpochReader(locate_lake(tmp_path))
    assert require(reader).epoch == 1
    add_epoch(tmp_path, 2)
    assert require(reader).epoch == 2


@on_disk
def test_a_log_that_is_gone_is_an_error_and_another_in_its_place_is_read(
    tmp_path: Path,
) -> None:
    add_epoch(tmp_path, 1, system_id="old")
    reader = EpochReader(locate_lake(tmp_path))
    assert require(reader).system_id == "old"
    shutil.rmtree(tmp_path / "staging")
    with pytest.raises(StagingError, match="the log is gone"):
        reader.read()
    add_epoch(tmp_path, 1, system_id="new")
    assert require(reader).system_id == "new"


def require(reader: EpochReader) -> Epoch:
    found = reader.read()
    assert found is not None
    return found


def add_epoch(root: Path, epoch: int, *, timeline: int = 1, system_id: str = "7") -> None:
    folder = root / "staging" / "epochs"
    row = {
        "epoch": epoch,
        "system_id": system_id,
        "timeline": timeline,
        "slot": "walgate",
        "publication": "walgate",
        "first_lsn": 5,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "reason": "first start",
    }
    table = open_table(locate_lake(folder), EPOCHS_SCHEMA)
    append_rows(table, locate_lake(folder), pa.Table.from_pylist([row], schema=EPOCHS_SCHEMA))
