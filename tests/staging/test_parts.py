"""Parts: what is written, sealed, moved and thrown away, judged by reading the files back."""

from __future__ import annotations

import errno
import gc
import json
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.errors import StagingError
from cdc_core.layout import CHANGES_SCHEMA, END_LSN_NOT_KNOWN
from cdc_core.staging.parts import Part, PartLost, PartWriter, move_part, seal_part, write_part
from cdc_core.vocabulary import Lsn
from tests.lakes import locate_lake, on_disk

OTHER_FILE_SYSTEM = Path("/dev/shm")  # noqa: S108 - memory, mostly.


def make_changes(
    first: int, count: int, *, end_lsn: int, table: str | None = "public.t"
) -> pa.Table:
    """Make changes of one transaction with seqs from `first` on."""
    rows = [
        {
            "epoch": 1,
            "commit_lsn": 500,
            "seq": seq,
            "end_lsn": end_lsn,
            "xid": 7,
            "committed_at": 0,
            "log_time": 0,
            "table": table,
            "relation_version": 1,
            "op": "insert",
            "values": [str(seq), "x" * 50],
        }
        for seq in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA)


def write_spooled(folder: Path, *, groups: int, rows: int = 40) -> Part:
    """Write a part whose end LSN is not known yet."""
    writer = PartWriter(folder)
    for group in range(groups):
        writer.write(make_changes(group * rows, rows, end_lsn=END_LSN_NOT_KNOWN))
    return writer.finish()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse to write more than this into any one file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("groups", [1, 2, 9])
def test_sealing_fills_in_the_end_lsn_in_every_row_group_and_nothing_else(
    tmp_path: Path, groups: int
) -> None:
    part = write_spooled(tmp_path, groups=groups)
    before = pq.read_table(part.path)
    assert not part.sealed
    sealed = seal_part(part, Lsn(0x16_B374_D848))
    after = pq.read_table(part.path)
    assert pq.read_metadata(part.path).num_row_groups == groups
    assert set(after.column("end_lsn").to_pylist()) == {0x16_B374_D848}
    assert after.drop_columns(["end_lsn"]).equals(before.drop_columns(["end_lsn"]))
    assert sealed.sealed


def test_a_sealed_part_tells_delta_the_bounds_its_rows_have(tmp_path: Path) -> None:
    sealed = seal_part(write_spooled(tmp_path, groups=3), Lsn(900))
    told = json.loads(sealed.statistics())
    rows = pq.read_table(sealed.path)
    assert told["numRecords"] == rows.num_rows == 120
    for name in ("epoch", "commit_lsn", "seq", "end_lsn", "table"):
        held = rows.column(name).to_pylist()
        assert (told["minValues"][name], told["maxValues"][name]) == (min(held), max(held)), name
    assert told["minValues"].keys() == told["maxValues"].keys()
    assert "values" not in told["minValues"]


def test_log_time_bounds_are_rounded_outwards_to_milliseconds(tmp_path: Path) -> None:
    changes = make_changes(0, 2, end_lsn=900)
    times = pa.array([1_234_567, 253_402_300_799_999_999], pa.timestamp("us", tz="UTC"))
    index = changes.schema.get_field_index("log_time")
    changes = changes.set_column(index, changes.schema.field("log_time"), times)
    part = write_part(locate_lake(tmp_path), changes.slice(0, 1))
    statistics = json.loads(part.statistics())
    assert statistics["minValues"]["log_time"] == "1970-01-01T00:00:01.234Z"
    assert statistics["maxValues"]["log_time"] == "1970-01-01T00:00:01.235Z"
    assert part.bounds["log_time"] == (1_234_567, 1_234_567)
    latest = json.loads(write_part(locate_lake(tmp_path), changes).statistics())
    assert latest["maxValues"]["log_time"] == "9999-12-31T23:59:59.999Z"


def test_a_part_tells_delta_how_many_of_its_rows_are_marks(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    writer.write(make_changes(0, 3, end_lsn=900))
    writer.write(make_changes(3, 2, end_lsn=900, table=None))
    assert json.loads(writer.finish().statistics())["nullCount"] == {"table": 2}


def test_the_file_itself_holds_no_bound_of_the_end_lsn_or_of_values(tmp_path: Path) -> None:
    sealed = seal_part(write_spooled(tmp_path, groups=2), Lsn(900))
    footer = pq.read_metadata(sealed.path)
    assert footer.metadata is None, "Delta's log has the schema"
    group = footer.row_group(0)
    bounded = {
        group.column(index).path_in_schema
        for index in range(group.num_columns)
        if group.column(index).statistics is not None
    }
    assert bounded == {"epoch", "commit_lsn", "seq", "table", "op"}


def test_marks_alone_have_no_bound_of_the_table(tmp_path: Path) -> None:
    part = write_part(locate_lake(tmp_path), make_changes(0, 2, end_lsn=600, table=None))
    assert "table" not in json.loads(part.statistics())["minValues"]


def test_a_part_without_the_placeholder_is_not_sealed(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    writer.write(make_changes(0, 5, end_lsn=600))
    part = writer.finish()
    assert part.sealed
    with pytest.raises(StagingError, match="expected one end LSN to fill in, found 0"):
        seal_part(part, Lsn(700))
    assert set(pq.read_table(part.path).column("end_lsn").to_pylist()) == {600}


def test_a_part_is_moved_once_and_again_does_nothing(tmp_path: Path) -> None:
    folder = locate_lake(tmp_path / "log")
    folder.make_folder()
    part = seal_part(write_spooled(tmp_path, groups=1), Lsn(900))
    moved = move_part(part, folder)
    assert moved.path == folder / part.path.name
    assert not part.path.exists()
    assert move_part(part, folder) == moved == move_part(moved, folder)


@on_disk
def test_a_part_is_lost_if_somebody_removed_it_and_not_without_a_folder(
    tmp_path: Path,
) -> None:
    part = seal_part(write_spooled(tmp_path, groups=1), Lsn(900))
    with pytest.raises(FileNotFoundError):
        move_part(part, locate_lake(tmp_path / "not mounted"))
    part.remove()
    with pytest.raises(PartLost, match="was removed before capture staged it"):
        move_part(part, locate_lake(tmp_path))


def test_a_part_is_lost_if_somebody_removed_it_from_the_log(tmp_path: Path) -> None:
    folder = locate_lake(tmp_path)
    part = write_part(folder, make_changes(0, 5, end_lsn=600))
    assert move_part(part, folder) == part
    part.remove()
    with pytest.raises(PartLost, match="was removed before capture staged it"):
        move_part(part, folder)


@on_disk
def test_a_part_moves_across_file_systems_and_stays_private(tmp_path: Path) -> None:
    if OTHER_FILE_SYSTEM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("the temporary folder is in memory already")
    part = seal_part(write_spooled(OTHER_FILE_SYSTEM, groups=1), Lsn(900))
    try:
        content = Path(str(part.path)).read_bytes()
        moved = Path(str(move_part(part, locate_lake(tmp_path)).path))
    finally:
        part.remove()
    assert moved.read_bytes() == content
    assert list(tmp_path.iterdir()) == [moved]
    assert stat.S_IMODE(moved.stat().st_mode) == 0o600


@on_disk
def test_a_part_that_the_other_file_system_refuses_stays_where_it_is(tmp_path: Path) -> None:
    if OTHER_FILE_SYSTEM.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("the temporary folder is in memory already")
    part = seal_part(write_spooled(OTHER_FILE_SYSTEM, groups=9), Lsn(900))
    try:
        with largest_file(1000), pytest.raises(OSError, match="too large"):
            move_part(part, locate_lake(tmp_path))
        assert list(tmp_path.iterdir()) == []
        assert move_part(part, locate_lake(tmp_path)).path.exists()
    finally:
        part.remove()


@on_disk
def test_a_part_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    part = write_part(locate_lake(tmp_path), make_changes(0, 5, end_lsn=600))
    assert stat.S_IMODE(Path(str(part.path)).stat().st_mode) == 0o600


@on_disk
@pytest.mark.parametrize("limit", [0, 3000, 20_000])
def test_a_refused_write_leaves_no_file_behind(tmp_path: Path, limit: int) -> None:
    changes = make_changes(0, 5000, end_lsn=600)
    with largest_file(limit), pytest.raises(OSError, match="too large") as refused:
        write_part(locate_lake(tmp_path), changes)
    assert refused.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []
    gc.collect()


def test_a_discarded_part_leaves_no_file_behind(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    writer.write(make_changes(0, 50, end_lsn=END_LSN_NOT_KNOWN))
    writer.discard()
    assert list(tmp_path.iterdir()) == []
    del writer
    gc.collect()


def test_what_storage_refuses_to_write_it_need_not_take_to_be_discarded(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    changes = make_changes(0, 50_000, end_lsn=END_LSN_NOT_KNOWN)
    with largest_file(20_000):
        with pytest.raises(OSError, match="too large"):
            writer.write(changes)
        writer.discard()
    assert list(tmp_path.iterdir()) == []
    del writer
    gc.collect()
