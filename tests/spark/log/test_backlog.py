from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Cut, write_cut
from spark_jobs.log.backlog import Backlog, choose_cut, is_scattered, read_backlog
from spark_jobs.log.files import LogFiles
from tests.lakes import locate_lake, path_of
from tests.spark.log_writer import LogWriter
from tests.spark.relations import insert, make_relation, mark

TABLE = make_relation("t", "k int4")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(locate_lake(tmp_path / "lake"))


@pytest.fixture
def log(lake: Lake) -> LogWriter:
    """Lend a log of three commits: two changes, a mark and a change, a mark."""
    log = LogWriter(lake)
    log.begin_epoch(16)
    for entries in ([insert(TABLE, "1"), insert(TABLE, "2")], [mark(TABLE), insert(TABLE, "3")]):
        log.add(entries)
        log.commit()
    log.add([mark(TABLE)])
    log.commit()
    return log


def open_files(lake: Lake) -> LogFiles:
    files = LogFiles.open(lake)
    assert files is not None
    return files


def cut_at(
    lake: Lake, lsn: int, *, merged: dict[str, Bound] | None = None, halted: tuple[str, ...] = ()
) -> None:
    now = datetime.now(UTC)
    write_cut(lake, Cut(Bound(1, Lsn(lsn)), now, now, "run", {}, merged or {}, halted))


def test_a_lake_without_a_log_has_no_backlog(lake: Lake) -> None:
    assert read_backlog(lake) == Backlog(None, None, 0)


def test_the_backlog_is_what_is_staged_of_tables_above_the_newest_cut(
    lake: Lake, log: LogWriter
) -> None:
    staged = Bound(1, Lsn(64))
    assert read_backlog(lake) == Backlog(staged, None, 3)
    cut_at(lake, 32)
    assert read_backlog(lake) == Backlog(staged, Bound(1, Lsn(32)), 1)
    cut_at(lake, 48)
    assert read_backlog(lake) == Backlog(staged, Bound(1, Lsn(48)), 0), "a mark alone is above it"
    log.begin_epoch(8)
    log.add([insert(TABLE, "4")])
    log.commit()
    assert read_backlog(lake) == Backlog(Bound(2, Lsn(24)), Bound(1, Lsn(48)), 1)


def test_a_table_left_behind_has_a_backlog_unless_it_is_halted(lake: Lake, log: LogWriter) -> None:
    merged = {"public.t": Bound(1, Lsn(32))}
    cut_at(lake, log.lsn, merged=merged)
    assert read_backlog(lake).entries == 1
    cut_at(lake, log.lsn, merged=merged, halted=("public.t",))
    assert read_backlog(lake).entries == 0


def test_a_file_whose_marks_were_not_counted_counts_whole_unless_it_holds_no_table(
    lake: Lake, log: LogWriter
) -> None:
    commits = DeltaTable(path_of(lake.changes)).version()
    for version in range(commits + 1):
        commit = lake.changes / "_delta_log" / f"{version:020}.json"
        commit.write_text(commit.read_text().replace("nullCount", "unknown"))
    assert log.lsn == 64
    assert read_backlog(lake).entries == 4


def test_a_round_takes_whole_commits_until_it_has_its_rows(lake: Lake, log: LogWriter) -> None:
    staged, files = Bound(1, Lsn(log.lsn)), open_files(lake)
    assert choose_cut(files, None, staged, 1) == Bound(1, Lsn(32))
    assert choose_cut(files, None, staged, 3) == Bound(1, Lsn(48))
    assert choose_cut(files, Bound(1, Lsn(32)), staged, 3) == staged
    assert choose_cut(files, None, staged, 100) == staged


def test_a_range_is_scattered_where_its_own_files_are_small(lake: Lake, log: LogWriter) -> None:
    small = Bound(1, Lsn(64))
    assert is_scattered(open_files(lake), None, small)
    assert not is_scattered(open_files(lake), small, small), "there is nothing in it"
    log.add([insert(TABLE, str(key)) for key in range(10, 6_010)])
    log.commit()
    large = Bound(1, Lsn(80))
    assert not is_scattered(open_files(lake), small, large)
    assert is_scattered(open_files(lake), None, large)
