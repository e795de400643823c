"""Places in a lake that is a folder of this host."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.lake_storage.arrow_files import open_input, open_output, read_footer
from cdc_core.lake_storage.durability import remove_old_copies
from cdc_core.lake_storage.place import LakePlace
from tests.refusing_disk import RefusingDisk


@pytest.fixture
def lake(tmp_path: Path) -> LakePlace:
    return LakePlace.of(tmp_path)


def list_names(folder: LakePlace, pattern: str = "*") -> list[str]:
    return sorted(place.name for place in folder.list_matching(pattern))


def test_a_place_is_the_text_of_its_root_and_its_name() -> None:
    place = LakePlace("/lake") / "staging/changes" / "part.parquet"
    assert place.uri == str(place) == "/lake/staging/changes/part.parquet"
    assert place.name == "part.parquet"
    assert place.parent == LakePlace("/lake/staging") / "changes"
    assert LakePlace.of(Path("/lake")) / "a" < LakePlace("/lake/b")
    # Spark sends places to its Python tasks.
    assert {pickle.loads(pickle.dumps(place))} == {place}  # noqa: S301 - Our own bytes.


def test_a_file_that_is_written_again_keeps_its_time(lake: LakePlace) -> None:
    """A paused writer of an older file must not be taken for one whose commit is refused."""
    file = lake / "commit.json"
    file.write_text("text")
    os.utime(file.uri, (1_000_000, 1_000_000))
    before = Path(file.uri).stat().st_ino
    file.rewrite()
    assert file.read_text() == "text"
    assert file.read_modified_us() == 1_000_000 * 1_000_000
    assert Path(file.uri).stat().st_ino != before


def test_a_folder_lists_its_files_with_sizes_and_times(lake: LakePlace) -> None:
    (lake / "a").write_text("four")
    (lake / "folder").make_new_folder()
    before = lake.read_clock_us()
    (found,) = lake.list_files()
    assert (found.name, found.size) == ("a", 4)
    assert abs(found.modified_us - before) < 60_000_000
    assert list((lake / "nothing").list_files()) == []


def test_what_is_in_a_folder_is_found_by_a_pattern(lake: LakePlace) -> None:
    for name in ("2.json", "1.json", "_last_checkpoint"):
        (lake / name).write_text("é")
    (lake / "folder").make_new_folder()
    assert list_names(lake, "*.json") == ["1.json", "2.json"]
    assert list_names(lake) == ["1.json", "2.json", "_last_checkpoint", "folder"]
    assert list_names(lake / "nothing") == []
    assert [(lake / name).is_folder() for name in ("folder", "1.json", "no")] == [
        True,
        False,
        False,
    ]
    assert [(lake / name).exists() for name in ("folder", "1.json", "no")] == [True, True, False]


def test_a_file_gives_its_text_its_size_and_its_time(lake: LakePlace) -> None:
    file = lake / "file"
    file.write_text("é\n")
    os.utime(file.uri, ns=(0, 1_234_567_000))
    assert (file.read_text(), file.read_size(), file.read_modified_us()) == ("é\n", 3, 1_234_567)
    for read in (LakePlace.read_text, LakePlace.read_size, LakePlace.read_modified_us):
        with pytest.raises(FileNotFoundError):
            read(lake / "nothing")


def test_a_created_file_is_private_and_takes_no_name_that_is_taken(lake: LakePlace) -> None:
    file = lake / "file"
    created = file.create()
    created.stream.write(b"bytes")
    with pytest.raises(FileExistsError):
        file.create()
    created.finish()
    assert file.read_text() == "bytes"
    assert stat.S_IMODE(Path(file.uri).stat().st_mode) == 0o600
    (lake / "other").create().discard()
    assert list_names(lake) == ["file"]


def test_a_created_file_that_the_disk_refuses_does_not_finish(
    lake: LakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RefusingDisk(monkeypatch)
    created = (lake / "file").create()
    disk.refuse(tmp_path, "file")
    with pytest.raises(OSError, match="Input/output error"):
        created.finish()
    created.discard()
    assert list_names(lake) == []


def test_a_file_moves_within_the_lake_and_comes_from_this_host(lake: LakePlace) -> None:
    (lake / "old").write_text("old")
    (lake / "new").write_text("new")
    (lake / "new").move_to(lake / "old")
    assert list_names(lake) == ["old"]
    (lake / "received").receive(Path((lake / "old").uri))
    assert (lake / "received").read_text() == "new"
    assert list_names(lake) == ["received"]


def test_what_is_removed_need_not_be_there(lake: LakePlace) -> None:
    (lake / "a/b").make_folder()
    (lake / "a/b/file").write_text("")
    for _ in range(2):
        (lake / "a/b/file").remove()
        (lake / "a").remove_folder()
    assert list_names(lake) == []


def test_a_folder_is_made_once_or_as_often_as_asked(lake: LakePlace) -> None:
    for _ in range(2):
        (lake / "a/b").make_folder()
    with pytest.raises(FileExistsError):
        (lake / "a").make_new_folder()
    with pytest.raises(FileNotFoundError):
        (lake / "c/d").make_new_folder()


def test_a_change_of_a_folder_and_another_folder_in_its_place_are_noticed(lake: LakePlace) -> None:
    folder = lake / "folder"
    assert folder.read_change() is None
    folder.make_folder()
    seen = {folder.read_change()}
    os.utime(folder.uri, ns=(0, 0))
    seen.add(folder.read_change())
    kept = lake / "kept"
    folder.move_to(kept)
    folder.make_folder()
    os.utime(folder.uri, ns=(0, 0))
    seen.add(folder.read_change())
    assert len(seen) == 3


def test_a_rewritten_file_is_a_new_one_with_the_same_bytes_and_rights(lake: LakePlace) -> None:
    file = lake / "file"
    file.write_text("bytes")
    path = Path(file.uri)
    path.chmod(0o640)
    before = path.stat()
    file.rewrite()
    assert file.read_text() == "bytes"
    assert path.stat().st_ino != before.st_ino
    assert path.stat().st_mode == before.st_mode
    assert list_names(lake) == ["file"]


def test_a_rewrite_that_the_disk_refuses_leaves_the_file_alone(
    lake: LakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lake / "file"
    file.write_text("bytes")
    RefusingDisk(monkeypatch).refuse(tmp_path, ".new")
    with pytest.raises(OSError, match="Input/output error"):
        file.rewrite()
    assert list_names(lake) == ["file"]


def test_copies_of_dead_processes_are_removed_and_young_ones_stay(lake: LakePlace) -> None:
    for name in (".a.1.new", ".b.2.new", "c.new"):
        (lake / name).write_text("")
    os.utime((lake / ".a.1.new").uri, (0, 0))
    os.utime((lake / "c.new").uri, (0, 0))
    remove_old_copies(lake)
    assert sorted(path.name for path in Path(lake.uri).iterdir()) == [".b.2.new", "c.new"]


def test_arrow_reads_what_it_wrote(lake: LakePlace) -> None:
    file, rows = lake / "rows.parquet", pa.table({"k": [1, 2, 3]})
    with open_output(file) as sink:
        pq.write_table(rows, sink)
    with open_input(file) as source:
        assert pq.read_table(source).equals(rows)
    assert read_footer(file).num_rows == 3
    with pytest.raises(FileNotFoundError):
        open_input(lake / "nothing")
