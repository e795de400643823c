"""The bound of a time is the end of the last transaction whose log time is at or before it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.log.files import LogFiles
from spark_jobs.log.log_time import find_bound_at_time, make_begins_later_error
from spark_jobs.query.read_bound import find_bound_at
from tests.lakes import locate_lake
from tests.spark.log_writer import LogWriter
from tests.spark.relations import insert, make_relation, mark

TABLE = make_relation("t", "k int4")
START = datetime(2026, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(locate_lake(tmp_path / "lake"))


def at(microseconds: int) -> datetime:
    return START + timedelta(microseconds=microseconds)


def find(lake: Lake, time: datetime) -> Bound:
    log = LogFiles.open(lake)
    assert log is not None
    found = find_bound_at_time(log, time)
    if found is None:
        raise make_begins_later_error(log, time)
    return found


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_time_finds_the_end_of_the_last_transaction_at_or_before_it(
    lake: Lake, seed: int, *, is_compacted: bool
) -> None:
    rng = random.Random(seed)
    log = LogWriter(lake)
    # The log time of each transaction, and its end, in the order of the log.
    model: list[tuple[datetime, Bound]] = []
    for first_lsn in (1600, 16):
        log.begin_epoch(first_lsn)
        for _ in range(rng.randint(1, 6)):
            for _ in range(rng.randint(1, 4)):
                # Commit times step back, and stay within the millisecond of a statistic.
                log.commit_time = max(log.log_time, START) + rng.randint(-700, 900) * MICROSECOND
                entry = rng.choice([insert(TABLE, "1"), mark(TABLE)])
                end = log.add([entry])
                model.append((log.log_time, Bound(log.epoch, Lsn(end))))
            log.commit()
    if is_compacted:
        # Another program puts both epochs into one file.
        open_delta(lake.changes).optimize.compact()
    newest = model[-1][0]
    end_of_first = max(bound for _, bound in model if bound.epoch == 1)
    times = {time + step * MICROSECOND for time, _ in model for step in (-1, 0, 1)}
    for time in sorted(times):
        if time < model[0][0] or time >= newest:
            with pytest.raises(LakeError):
                find(lake, time)
            continue
        expected = max(bound for log_time, bound in model if log_time <= time)
        assert find(lake, time) == expected, time
        if expected == end_of_first:
            # What the source committed after it may be missing.
            with pytest.raises(LakeError, match="epoch 1 ended before"):
                find_bound_at(lake, time)
        else:
            assert find_bound_at(lake, time) == expected


@pytest.fixture
def two_seconds(lake: Lake) -> Lake:
    """Lend a lake whose log has a transaction in each of the first two seconds of the year."""
    log = LogWriter(lake)
    log.begin_epoch(16)
    for microseconds in (1_000_000, 2_000_000):
        log.commit_time = at(microseconds)
        log.add([insert(TABLE, "1")])
        log.commit()
    return lake


def test_the_newest_log_time_is_refused(two_seconds: Lake) -> None:
    assert find(two_seconds, at(1_999_999)) == Bound(1, Lsn(32))
    # The next transaction may have the same log time.
    with pytest.raises(LakeError, match=r"complete only before 2026-01-01T00:00:02Z") as caught:
        find(two_seconds, at(2_000_000))
    assert caught.value.retry is Retry.LATER


def test_a_time_before_the_log_is_refused(two_seconds: Lake) -> None:
    with pytest.raises(LakeError, match=r"from 2026-01-01T00:00:01.001000Z on and") as caught:
        find(two_seconds, at(999_999))
    assert caught.value.retry is Retry.AFTER_FIX
    assert find(two_seconds, at(1_001_000)) == Bound(1, Lsn(32))


@pytest.mark.parametrize("first_lsns", [(1600, 16), (16, 1600)])
def test_the_newer_epoch_of_a_file_counts(lake: Lake, first_lsns: tuple[int, int]) -> None:
    log = LogWriter(lake)
    for second, first_lsn in enumerate(first_lsns):
        log.begin_epoch(first_lsn)
        log.commit_time = at(1_000_000 * second)
        log.add([insert(TABLE, "1")])
    log.commit_time = at(2_000_000)
    log.add([insert(TABLE, "1")])
    log.commit()
    assert find(lake, at(1_500_000)) == Bound(2, Lsn(first_lsns[1] + 16))


def test_a_time_between_two_epochs_is_refused(lake: Lake) -> None:
    log = LogWriter(lake)
    ends: list[Bound] = []
    for epoch, first_lsn in enumerate((1600, 16)):
        log.begin_epoch(first_lsn)
        for second in (1, 2):
            log.commit_time = at(1_000_000 * (second + 4 * epoch))
            ends.append(Bound(log.epoch, Lsn(log.add([insert(TABLE, "1")]))))
        log.commit()
    # Another program puts both epochs into one file.
    open_delta(lake.changes).optimize.compact()
    assert find_bound_at(lake, at(1_500_000)) == ends[0]
    assert find_bound_at(lake, at(5_500_000)) == ends[2]
    for microseconds in (2_000_000, 4_999_999):
        assert find(lake, at(microseconds)) == ends[1]
        with pytest.raises(LakeError, match=f"epoch 1 ended before it, at {ends[1].lsn}"):
            find_bound_at(lake, at(microseconds))
