"""What a place does, whether the lake is a folder or in an object store."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from cdc_core.lake_storage.arrow_files import open_input, open_output, read_footer
from cdc_core.lake_storage.delta_tables import is_delta, open_delta
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.store_credentials import StoreCredentials, find_credentials


@pytest.fixture(params=["folder", "object store"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakePlace:
    if request.param == "folder":
        return LocalPlace.of(tmp_path)
    place: LakePlace = request.getfixturevalue("object_lake")
    return place


def list_names(folder: LakePlace, pattern: str = "*") -> list[str]:
    return sorted(place.name for place in folder.list_matching(pattern))


def test_a_place_is_found_by_its_root_and_its_name(lake: LakePlace) -> None:
    place = lake / "staging/changes" / "part.parquet"
    assert place.uri == str(place) == f"{lake.uri}/staging/changes/part.parquet"
    assert place.name == "part.parquet"
    assert place.parent == lake / "staging" / "changes"
    assert lake / "a" < lake / "b"
    # Spark sends places to its Python tasks.
    assert {pickle.loads(pickle.dumps(place))} == {place}  # noqa: S301 - Our own bytes.


def test_a_file_gives_its_text_its_size_and_its_time(lake: LakePlace) -> None:
    file = lake / "file"
    before = lake.read_clock_us()
    file.write_text("é\n")
    assert (file.read_text(), file.read_size()) == ("é\n", 3)
    assert abs(file.read_modified_us() - before) < 60_000_000
    nothing = lake / "nothing"
    for read in (nothing.read_text, nothing.read_size, nothing.read_modified_us):
        with pytest.raises(FileNotFoundError) as caught:
            read()
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, nothing.uri)


def test_a_folder_lists_its_files_with_sizes_and_times(lake: LakePlace) -> None:
    (lake / "a").write_text("four")
    (lake / "folder").make_folder()
    (lake / "folder/b").write_text("")
    before = lake.read_clock_us()
    (found,) = lake.list_files()
    assert (found.name, found.size) == ("a", 4)
    assert abs(found.modified_us - before) < 60_000_000
    assert list((lake / "nothing").list_files()) == []


def test_what_is_in_a_folder_is_found_by_a_pattern(lake: LakePlace) -> None:
    for name in ("2.json", "1.json", "_last_checkpoint"):
        (lake / name).write_text("é")
    (lake / "folder").make_folder()
    (lake / "folder/file").write_text("")
    assert list_names(lake, "*.json") == ["1.json", "2.json"]
    assert list_names(lake, "_last_checkpoint") == ["_last_checkpoint"]
    assert list_names(lake) == ["1.json", "2.json", "_last_checkpoint", "folder"]
    assert list_names(lake / "nothing") == []
    # No name of an object is a folder because another name begins with it.
    names = ("folder", "1.json", "1", "no")
    assert [(lake / name).is_folder() for name in names] == [True, False, False, False]
    assert [(lake / name).exists() for name in names] == [True, True, False, False]


@pytest.mark.parametrize("size", [0, 3, 11 << 20])
def test_a_file_that_is_written_in_pieces_appears_once_it_is_finished(
    lake: LakePlace, size: int
) -> None:
    created = (lake / "file").create()
    for first in range(0, size, 1 << 20):
        created.stream.write(b"x" * min(1 << 20, size - first))
    assert lake.is_durable_at_once is not (lake / "file").exists()
    created.finish()
    assert (lake / "file").read_bytes() == b"x" * size
    (lake / "other").create().discard()
    assert list_names(lake) == ["file"]


def test_a_text_is_replaced_at_once(lake: LakePlace) -> None:
    for text in ("old", "new"):
        (lake / "file").replace_text(text)
        assert (lake / "file").read_text() == text
    assert list_names(lake) == ["file"]


def test_a_file_comes_from_this_host(lake: LakePlace, tmp_path: Path) -> None:
    local = tmp_path / "spool" / "part"
    local.parent.mkdir()
    local.write_bytes(b"x" * (6 << 20))
    (lake / "received").receive(local)
    assert (lake / "received").read_size() == 6 << 20
    assert not local.exists()


def test_what_is_removed_need_not_be_there(lake: LakePlace) -> None:
    (lake / "a/b").make_folder()
    (lake / "a/b/file").write_text("")
    (lake / "ab").write_text("")
    for _ in range(2):
        (lake / "a/b/file").remove()
        (lake / "a").remove_folder()
    assert list_names(lake) == ["ab"]


def test_files_of_a_folder_are_removed_by_name(lake: LakePlace) -> None:
    names = [f"{number}.parquet" for number in range(3)]
    for name in [*names, "other"]:
        (lake / name).write_text("")
    left: list[int] = []
    # The second time, they are gone.
    for _ in range(2):
        lake.remove_files(names, after_each=lambda: left.append(len(list_names(lake))))
        assert list_names(lake) == ["other"]
    assert len(left) == 6
    assert left[2:] == [1, 1, 1, 1]


def test_another_file_changes_a_folder(lake: LakePlace) -> None:
    folder = lake / "folder"
    assert folder.read_change() is None
    folder.make_folder()
    (folder / "1").write_text("")
    before = folder.read_change()
    assert before is not None
    assert folder.read_change() == before
    (folder / "2").write_text("")
    assert folder.read_change() != before


def test_what_is_durable_at_once_needs_no_forcing(lake: LakePlace) -> None:
    (lake / "file").write_text("text")
    for place in (lake / "file", lake):
        place.sync()
    (lake / "file").rewrite()
    assert (lake / "file").read_text() == "text"


def test_arrow_reads_what_it_wrote(lake: LakePlace) -> None:
    file, rows = lake / "rows.parquet", pa.table({"k": range(100_000)})
    with open_output(file) as sink:
        pq.write_table(rows, sink, row_group_size=10_000)
    with open_input(file) as source, pq.ParquetFile(source) as parquet:
        assert parquet.read().equals(rows)
        assert parquet.read_row_group(7).equals(rows.slice(70_000, 10_000))
    assert read_footer(file).num_rows == 100_000
    with pytest.raises(FileNotFoundError):
        open_input(lake / "nothing")


def test_delta_rs_opens_a_table_at_a_version(lake: LakePlace) -> None:
    table = lake / "tables/t"
    assert not is_delta(table)
    table.make_folder()
    for row in range(2):
        write_deltalake(
            table.uri, pa.table({"k": [row]}), mode="append", storage_options=table.find_options()
        )
    assert is_delta(table)
    assert open_delta(table).to_pyarrow_table().num_rows == 2
    assert open_delta(table, version=0).to_pyarrow_table().num_rows == 1


def test_a_file_of_arrow_that_fails_is_not_in_an_object_store(object_lake: ObjectPlace) -> None:
    def write_half() -> None:
        with open_output(object_lake / "part") as sink:
            sink.write(b"half")
            raise ValueError("rows")

    with pytest.raises(ValueError, match="rows"):
        write_half()
    assert list_names(object_lake) == []


def test_credentials_that_are_missing_do_not_look_like_a_missing_object(
    object_lake: ObjectPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (object_lake / "file").write_text("text")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for call in (object_lake.exists, (object_lake / "file").remove, object_lake.read_tagged):
        with pytest.raises(OSError, match="credentials cannot be read: No such file") as caught:
            call()
        assert not isinstance(caught.value, FileNotFoundError)
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    )
    assert (object_lake / "file").read_text() == "text"


def test_credentials_are_those_of_the_environment_or_of_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[a]\naws_access_key_id = k\naws_secret_access_key = s3cr3t\n[b]\n")
    named = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    found = find_credentials({**named, "AWS_PROFILE": "a"})
    assert found == StoreCredentials("k", "s3cr3t")
    assert "s3cr3t" not in repr(found)
    for profile in ("b", "c"):
        with pytest.raises(OSError, match=f"profile {profile} in .* lacks aws_access_key_id"):
            find_credentials({**named, "AWS_PROFILE": profile})
    pair = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    assert find_credentials({**named, **pair}) == StoreCredentials("k", "s", "t")
    file.write_text("s3cr3t without a section")
    with pytest.raises(OSError, match="is no file of profiles") as caught:
        find_credentials(named)
    assert "s3cr3t" not in str(caught.value)


def test_a_fork_of_a_process_that_used_the_store_is_refused(object_lake: ObjectPlace) -> None:
    object_lake.exists()
    child = os.fork()
    if child == 0:
        try:
            object_lake.exists()
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
