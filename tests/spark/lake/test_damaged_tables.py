"""What is called a damaged table: one whose files are torn, and not one whose storage fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_store import StoreFailed
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake import damaged_tables
from spark_jobs.lake.damaged_tables import find_torn


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
