"""Which files of the log are trimmed, and which are compacted."""

from __future__ import annotations

import random
from dataclasses import replace

from cdc_core.staging.log_files import (
    LogPoint,
    StagedFile,
    choose_compacted,
    choose_trimmed,
)
from cdc_core.vocabulary import Lsn


def make_files(count: int, rows: int = 1, epoch: int = 1) -> list[StagedFile]:
    return [
        StagedFile(
            f"part-{epoch}-{n}", 1000, rows, n, LogPoint(epoch, Lsn(n)), LogPoint(epoch, Lsn(n))
        )
        for n in range(count)
    ]


def trim(files: list[StagedFile], floor: LogPoint, confirmed: LogPoint) -> list[int]:
    return [int(file.end.lsn) for file in choose_trimmed(files, floor=floor, confirmed=confirmed)]


def test_files_go_up_to_the_floor_and_what_the_slot_has_confirmed() -> None:
    files = make_files(10)
    assert trim(files, LogPoint(1, Lsn(3)), LogPoint(1, Lsn(9))) == [0, 1, 2, 3]
    assert trim(files, LogPoint(1, Lsn(9)), LogPoint(1, Lsn(2))) == [0, 1, 2]
    assert trim(files, LogPoint(1, Lsn(0)), LogPoint(2, Lsn(0))) == [0]
    assert trim(files, LogPoint(2, Lsn(0)), LogPoint(2, Lsn(0))) == list(range(9))


def test_the_newest_file_stays_for_the_replay_check() -> None:
    far = LogPoint(9, Lsn(9))
    assert trim(make_files(1), far, far) == []
    assert trim(make_files(3), far, far) == [0, 1]


def test_all_files_of_the_newest_transaction_stay() -> None:
    """A large transaction has several files, which all end where it ends."""
    far = LogPoint(9, Lsn(9))
    files = make_files(3)
    assert trim([*files, replace(files[-1], name="another")], far, far) == [0, 1]


def test_a_file_that_reaches_above_the_floor_stays_whole() -> None:
    wide = replace(make_files(1)[0], end=LogPoint(1, Lsn(5)))
    assert trim([wide, *make_files(9)[6:]], LogPoint(1, Lsn(4)), LogPoint(1, Lsn(8))) == []


def test_many_small_files_are_compacted_and_few_are_not() -> None:
    assert len(choose_compacted(make_files(60), before_ms=10**6)) == 60
    assert choose_compacted(make_files(49), before_ms=10**6) == []
    assert len(choose_compacted(make_files(5, rows=30_000), before_ms=10**6)) == 4


def test_new_files_and_files_of_another_epoch_are_not_compacted_with_the_others() -> None:
    assert len(choose_compacted(make_files(90), before_ms=70)) == 70
    files = [*make_files(55), *make_files(55, epoch=2)]
    assert {file.end.epoch for file in choose_compacted(files, before_ms=10**6)} == {1}
    both = replace(make_files(1)[0], end=LogPoint(2, Lsn(1)))
    assert choose_compacted([both] * 60, before_ms=10**6) == []


def test_an_entry_is_written_again_only_a_few_times() -> None:
    chance = random.Random(20261126)
    files: list[StagedFile] = []
    written = 0
    for number in range(1, 1001):
        rows = chance.choice([1, 1, 1, 20])
        point = LogPoint(1, Lsn(number))
        files.append(StagedFile(f"p{number}", rows * 100, rows, 0, point, point))
        while group := choose_compacted(files, before_ms=1):
            start = files.index(group[0])
            merged = replace(
                group[0],
                name=f"c{number}",
                rows=sum(file.rows for file in group),
                size=sum(file.size for file in group),
                end=group[-1].end,
            )
            written += merged.rows
            files[start : start + len(group)] = [merged]
    assert len(files) < 120
    assert written < 12 * sum(file.rows for file in files)
