"""What attempts to write a table leave: dead ones, paused ones, and those without a reply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Lsn
from spark_jobs.delta import committer
from spark_jobs.delta.abandoned_attempts import clear_attempts
from spark_jobs.delta.attempts import Attempt, attempting
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.delta.file_writer import WrittenFile, write_batches
from spark_jobs.lake.lake import Bound, Epoch

EPOCH = Epoch(1, "system", Lsn(0))


@pytest.fixture
def table(tmp_path: Path) -> LocalPlace:
    """A table with the key 0."""
    write_deltalake(tmp_path / "t", make_row(0))
    return LocalPlace.of(tmp_path / "t")


def make_row(key: int) -> pa.Table:
    nulls = {"_raw": pa.map_(pa.string(), pa.string()), "_holes": pa.list_(pa.string())}
    return pa.table({"k": [key], **{name: pa.nulls(1, kind) for name, kind in nulls.items()}})


def begin(table: LakePlace, key: int) -> tuple[DeltaTable, Attempt, WrittenFile]:
    """Open a table and write a file for its next version, in an attempt that does not end."""
    opened = open_delta(table)
    entered = attempting(table, version=opened.version() + 1)
    attempt = entered.__enter__()
    KEPT.append(entered)
    return opened, attempt, write(attempt, key)


# A context manager that nobody keeps ends.
KEPT: list[Any] = []


def write(attempt: Attempt, key: int) -> WrittenFile:
    written = write_batches(attempt, make_row(key).to_batches())
    assert written is not None
    return written


def commit(opened: DeltaTable, attempt: Attempt, file: WrittenFile) -> None:
    commit_files(
        attempt.table,
        opened,
        FileChange(attempt, [file]),
        epoch=EPOCH,
        reached=Bound(1, Lsn(16)),
        lossy=None,
    )


def list_left(table: LocalPlace) -> set[str]:
    """The names in a table's folder that are no part of its newest version."""
    files = pa.table(open_delta(table).get_add_actions())["path"].to_pylist()
    known = {"_delta_log", "_attempts", *files}
    inside = (folder.iterdir() for folder in (table.path, table.path / "_attempts"))
    return {path.name for paths in inside for path in paths} - known


def read_keys(table: LakePlace) -> list[int]:
    return sorted(open_delta(table).to_pyarrow_table()["k"].to_pylist())


def test_a_committed_file_stays_and_nothing_else(table: LocalPlace) -> None:
    opened = open_delta(table)
    with attempting(table, version=1) as attempt:
        file = write(attempt, 1)
        write(attempt, 2)
        attempt.may_have_unused = True
        commit(opened, attempt, file)
    assert read_keys(table) == [0, 1]
    assert list_left(table) == set()


def test_a_failed_attempt_leaves_nothing(table: LocalPlace) -> None:
    with pytest.raises(ZeroDivisionError), attempting(table, version=1) as attempt:
        write(attempt, 1 // (write(attempt, 1).rows - 1))
    assert list_left(table) == set()


def test_a_process_that_was_only_paused_is_refused_before_its_files_go(
    table: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, attempt, file = begin(table, 1)

    def pause(point: str) -> None:
        assert point == "before_files_committed"
        clear_attempts(table, [EPOCH])
        assert list_left(table) == set()

    monkeypatch.setattr(committer, "reach", pause)
    with pytest.raises(CommitFailedError):
        commit(opened, attempt, file)
    assert read_keys(table) == [0]
    assert not attempt.is_unclear


def test_a_process_that_wakes_without_the_files_of_spark_commits_nothing(
    table: LocalPlace,
) -> None:
    def write_and_be_cleared(folder: str) -> None:
        place = table / "_attempts" / Path(folder).name
        place.make_folder()
        pq.write_table(make_row(1), place.path / "part-0.parquet")
        clear_attempts(table, [EPOCH])

    with pytest.raises(OSError, match="removed"), attempting(table, version=1) as attempt:
        attempt.take_from_spark(write_and_be_cleared)
    assert open_delta(table).version() == 1, "the version of the attempt is taken"
    assert read_keys(table) == [0]
    assert list_left(table) == set()


def test_the_files_of_spark_stay_until_the_version_is_taken(
    table: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_look_dead(folder: str) -> None:
        place = table / "_attempts" / Path(folder).name
        place.make_folder()
        (place / "part-0.parquet").write_text("")
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, "create_write_transaction", give_no_reply)
            with pytest.raises(OSError, match="no reply"):
                clear_attempts(table, [EPOCH])

    with attempting(table, version=1) as attempt:
        assert len(attempt.take_from_spark(write_and_look_dead)) == 1


def test_the_commit_that_takes_a_version_has_the_bound_of_the_table(table: LocalPlace) -> None:
    opened = open_delta(table)
    with attempting(table, version=1) as attempt:
        commit(opened, attempt, write(attempt, 1))
    begin(table, 2)
    clear_attempts(table, [EPOCH])
    named = [json.loads(line) for line in (table / name_commit(2)).read_text().splitlines()]
    (bound,) = [action["txn"] for action in named if "txn" in action]
    assert (bound["appId"], bound["version"]) == (EPOCH.app, 16)


def test_a_commit_of_another_refuses_the_attempt_so_no_other_is_made(table: LocalPlace) -> None:
    begin(table, 1)
    opened = open_delta(table)
    with attempting(table, version=1) as other:
        commit(opened, other, write(other, 2))
    clear_attempts(table, [EPOCH])
    assert open_delta(table).version() == 1
    assert read_keys(table) == [0, 2]
    assert list_left(table) == set()


def test_a_process_that_died_after_its_commit_loses_no_file(table: LocalPlace) -> None:
    opened, attempt, file = begin(table, 1)
    write(attempt, 2)
    commit(opened, attempt, file)
    clear_attempts(table, [EPOCH])
    assert open_delta(table).version() == 1
    assert read_keys(table) == [0, 1]
    assert list_left(table) == set()


def test_an_attempt_without_files_needs_no_commit(table: LocalPlace) -> None:
    with attempting(table, version=1):
        Attempt(table, 1, "dead").record.write_text("")
        clear_attempts(table, [EPOCH])
        assert list_left(table) == set()
    assert open_delta(table).version() == 0


def test_files_stay_if_the_commit_that_may_name_them_is_gone(table: LocalPlace) -> None:
    opened, attempt, file = begin(table, 1)
    commit(opened, attempt, file)
    open_delta(table).create_checkpoint()
    (table / "_delta_log" / f"{1:020}.json").remove()
    clear_attempts(table, [EPOCH])
    assert read_keys(table) == [0, 1]
    assert list_left(table) == set()


def lose_reply(table: DeltaTable, *of: Any, **more: Any) -> None:
    """Commit, and say what delta-rs says if the reply was lost: it finds the version taken."""
    MAKE(table, *of, **more)
    raise CommitFailedError("another has this version")


def give_no_reply(*_: Any, **__: Any) -> None:
    raise OSError("no reply")


MAKE = DeltaTable.create_write_transaction


def test_a_commit_whose_reply_was_lost_is_known_again(
    table: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_delta(table)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose_reply)
    with attempting(table, version=1) as attempt:
        commit(opened, attempt, write(attempt, 1))
    assert read_keys(table) == [0, 1]
    assert list_left(table) == set()


def test_files_stay_while_the_commit_may_still_come(
    table: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_delta(table)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", give_no_reply)
        with pytest.raises(OSError, match="no reply"), attempting(table, version=1) as attempt:
            commit(opened, attempt, write(attempt, 1))
    (file,) = attempt.list_files()
    assert list_left(table) == {file.name, attempt.record.name}
    clear_attempts(table, [EPOCH])
    assert open_delta(table).version() == 1, "a late commit is refused"
    assert read_keys(table) == [0]
    assert list_left(table) == set()


def test_a_folder_that_the_storage_does_not_remove_is_found_again(
    table: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_by_spark(uri: str) -> None:
        Path(uri).mkdir()
        pq.write_table(make_row(1), Path(uri) / "part-0.parquet")

    with monkeypatch.context() as failing, attempting(table, version=1) as attempt:
        failing.setattr(LocalPlace, "remove_folder", lambda _: None)
        attempt.take_from_spark(write_by_spark)
    assert len(list_left(table)) == 2, "the folder, and the record by which it is found"
    assert clear_attempts(table, [EPOCH])
    assert not list_left(table)
