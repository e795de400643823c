"""The tail of the log tells of its newest marks and sweeps, wherever they stand in a file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from cdc_core.layout import CHANGES_SCHEMA
from cdc_core.staging.commits import CommitsGone
from cdc_core.staging.parts import PartWriter
from cdc_core.staging.tail import Tail
from cdc_core.vocabulary import Operation
from tests.lakes import locate_lake, on_disk


def make_entries(first: int, operations: list[Operation]) -> pa.Table:
    """Make entries of one transaction with seqs from `first` on."""
    rows = [
        {
            "epoch": 1,
            "commit_lsn": 500,
            "seq": seq,
            "end_lsn": 600,
            "xid": 7,
            "committed_at": 0,
            "log_time": 0,
            "table": None if operation is Operation.MARK else "public.t",
            "relation_version": 1,
            "op": operation.value,
            "detail": f"of {seq}" if operation in {Operation.MARK, Operation.SWEEP} else None,
        }
        for seq, operation in enumerate(operations, first)
    ]
    return pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA)


def extend(root: Path, *groups: list[Operation], is_new: bool = True) -> None:
    """Commit one file more, of a row group for each of some lists of operations."""
    folder = root / "staging" / "changes"
    if not folder.exists():
        write_deltalake(folder, CHANGES_SCHEMA.empty_table())
    writer, first = PartWriter(folder), 0
    for group in groups:
        writer.write(make_entries(first, group))
        first += len(group)
    part = writer.finish()
    size = (folder / part.path.name).stat().st_size
    action = AddAction(part.path.name, size, {}, 0, data_change=is_new, stats=part.statistics())
    DeltaTable(folder).create_write_transaction([action], "append", CHANGES_SCHEMA)


@on_disk
def test_marks_and_sweeps_of_any_row_group_are_told_once(tmp_path: Path) -> None:
    read, mark, sweep = Operation.READ, Operation.MARK, Operation.SWEEP
    extend(tmp_path, [mark])
    tail = Tail(locate_lake(tmp_path))
    assert list(tail.read()) == []
    extend(tmp_path, [mark, read, read], [read, read], [read, sweep, read, mark])
    extend(tmp_path, [read])
    assert [(told.position.seq, told.detail) for told in tail.read()] == [
        (0, "of 0"),
        (6, "of 6"),
        (8, "of 8"),
    ]
    assert list(tail.read()) == []


@on_disk
def test_a_row_group_without_marks_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend(tmp_path, [Operation.READ])
    tail = Tail(locate_lake(tmp_path))
    extend(tmp_path, [Operation.READ] * 3, [Operation.READ, Operation.MARK], [Operation.INSERT])
    asked: list[list[int]] = []
    of_file = pq.ParquetFile.read_row_groups

    def read_row_groups(file: pq.ParquetFile, groups: list[int], **options: object) -> pa.Table:
        asked.append(groups)
        return of_file(file, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read_row_groups)
    assert [told.position.seq for told in tail.read()] == [4]
    assert asked == [[1]]


@on_disk
def test_a_compaction_brings_no_entry_again(tmp_path: Path) -> None:
    extend(tmp_path, [Operation.READ])
    tail = Tail(locate_lake(tmp_path))
    extend(tmp_path, [Operation.MARK], is_new=False)
    assert list(tail.read()) == []
    extend(tmp_path, [Operation.MARK])
    assert len(list(tail.read())) == 1


@on_disk
def test_a_process_that_was_paused_until_its_commits_were_removed_is_not_left_waiting(
    tmp_path: Path,
) -> None:
    extend(tmp_path, [Operation.READ])
    tail = Tail(locate_lake(tmp_path))
    for _ in range(3):
        extend(tmp_path, [Operation.MARK])
    folder = tmp_path / "staging" / "changes"
    DeltaTable(folder).create_checkpoint()
    newest = DeltaTable(folder).version()
    for version in range(newest):
        (folder / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(CommitsGone, match="was removed before it was read"):
        list(tail.read())


@on_disk
def test_a_commit_whose_file_is_gone_counts_as_removed(tmp_path: Path) -> None:
    """The log lost the file long ago, and the newest version needs the commit."""
    extend(tmp_path, [Operation.READ])
    tail = Tail(locate_lake(tmp_path))
    extend(tmp_path, [Operation.MARK])
    for file in (tmp_path / "staging" / "changes").glob("*.parquet"):
        file.unlink()
    with pytest.raises(CommitsGone, match="was removed before it was read"):
        list(tail.read())
