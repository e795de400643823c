"""What is called a damaged table: one whose files are torn, and not one whose storage fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.delta_log import DeltaLog
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_store import StoreFailed
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake import damaged_tables
from spark_jobs.lake.damaged_tables import UnreadableTable, find_torn, open_current
from spark_jobs.lake.lake import open_table


@pytest.fixture
def table(tmp_path: Path) -> LocalPlace:
    write_deltalake(tmp_path / "t", pa.table({"k": [0]}))
    return LocalPlace.of(tmp_path / "t")


def remove(file: Path) -> None:
    file.unlink()


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def lengthen(file: Path) -> None:
    """A whole file follows some other bytes."""
    file.write_bytes(b"0" * 8 + file.read_bytes())


def garble_footer(file: Path) -> None:
    """The end of the file is right, and the footer before it is not."""
    content = file.read_bytes()
    file.write_bytes(content[:-200] + b"\xff" * 192 + content[-8:])


@pytest.mark.parametrize("damage", [remove, shorten, lengthen, garble_footer])
def test_a_file_that_is_not_whole_makes_a_table_damaged(
    table: LocalPlace, damage: Callable[[Path], None]
) -> None:
    assert find_torn(table) is None
    (file,) = table.path.glob("*.parquet")
    damage(file)
    found = find_torn(table)
    assert found is not None
    assert file.name in found.message


@pytest.mark.parametrize(
    "error", [StoreFailed("SlowDown", "s3://b/t"), PermissionError(13, "not permitted")]
)
def test_a_file_that_the_storage_does_not_give_does_not(
    table: LocalPlace, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """The advice for a damaged table is to delete it."""

    def fail(_: LakePlace) -> None:
        raise error

    monkeypatch.setattr(damaged_tables, "read_footer", fail)
    assert find_torn(table) is None


def test_a_log_that_is_not_whole_makes_a_table_damaged(table: LocalPlace) -> None:
    assert open_current(table) is not None
    (table / name_commit(0)).write_text('{"add":')
    with pytest.raises(UnreadableTable, match="cannot be opened") as damaged:
        open_current(table)
    assert damaged.value.fix.startswith("restore ")


def test_a_log_that_the_storage_does_not_give_does_not(
    table: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs may give a failure of the storage the type of a damaged log."""
    calls: list[LakePlace] = []

    def open_once_in_vain(folder: LakePlace) -> DeltaTable | None:
        calls.append(folder)
        if len(calls) == 1:
            raise DeltaError("Generic S3 error")
        return open_table(folder)

    monkeypatch.setattr(damaged_tables, "open_table", open_once_in_vain)
    assert open_current(table) is not None

    def fail(_: LakePlace) -> None:
        raise StoreFailed("SlowDown", "s3://b/t")

    calls.clear()
    monkeypatch.setattr(DeltaLog, "list", fail)
    with pytest.raises(UnreadableTable, match="SlowDown") as failed:
        open_current(table)
    assert failed.value.fix.startswith("check that the lake's storage is up")
