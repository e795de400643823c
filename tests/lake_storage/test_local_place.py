"""What only a place on a file system does. `test_places` has what all places do."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cdc_core.lake_storage.durability import remove_old_copies
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.place import LakePlace
from tests.refusing_disk import RefusingDisk


@pytest.fixture
def lake(tmp_path: Path) -> LocalPlace:
    return LocalPlace.of(tmp_path)


def list_names(folder: LakePlace, pattern: str = "*") -> list[str]:
    return sorted(place.name for place in folder.list_matching(pattern))


def test_a_file_that_is_written_again_keeps_its_time(lake: LocalPlace) -> None:
    """A paused writer of an older file must not be taken for one whose commit is refused."""
    file = lake / "commit.json"
    file.write_text("text")
    os.utime(file.uri, (1_000_000, 1_000_000))
    before = Path(file.uri).stat().st_ino
    file.rewrite()
    assert file.read_text() == "text"
    assert file.read_modified_us() == 1_000_000 * 1_000_000
    assert Path(file.uri).stat().st_ino != before


def test_a_created_file_is_private_and_takes_no_name_that_is_taken(lake: LocalPlace) -> None:
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
    lake: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RefusingDisk(monkeypatch)
    created = (lake / "file").create()
    disk.refuse(tmp_path, "file")
    with pytest.raises(OSError, match="Input/output error"):
        created.finish()
    created.discard()
    assert list_names(lake) == []


def test_a_file_moves_within_the_lake_and_comes_from_this_host(lake: LocalPlace) -> None:
    (lake / "old").write_text("old")
    (lake / "new").write_text("new")
    (lake / "new").move_to(lake / "old")
    assert list_names(lake) == ["old"]
    (lake / "received").receive(Path((lake / "old").uri))
    assert (lake / "received").read_text() == "new"
    assert list_names(lake) == ["received"]


def test_a_folder_that_exists_may_be_made_again(lake: LocalPlace) -> None:
    for _ in range(2):
        (lake / "a/b").make_folder()
        assert (lake / "a/b").is_folder()


def test_a_change_of_a_folder_and_another_folder_in_its_place_are_noticed(lake: LocalPlace) -> None:
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


def test_a_rewritten_file_is_a_new_one_with_the_same_bytes_and_rights(lake: LocalPlace) -> None:
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
    lake: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lake / "file"
    file.write_text("bytes")
    RefusingDisk(monkeypatch).refuse(tmp_path, ".new")
    with pytest.raises(OSError, match="Input/output error"):
        file.rewrite()
    assert list_names(lake) == ["file"]


def test_copies_of_dead_processes_are_removed_and_young_ones_stay(lake: LocalPlace) -> None:
    for name in (".a.1.new", ".b.2.new", "c.new"):
        (lake / name).write_text("")
    os.utime((lake / ".a.1.new").uri, (0, 0))
    os.utime((lake / "c.new").uri, (0, 0))
    remove_old_copies(lake)
    assert sorted(path.name for path in Path(lake.uri).iterdir()) == [".b.2.new", "c.new"]
