"""What the backfills of one process share, and how many rows a chunk has."""

from __future__ import annotations

import threading

from cdc_core.backfill.chunk_size import AIM_BYTES, AIM_S, ChunkSize
from cdc_core.backfill.limits import WAITING_BYTES, BackfillLimits

DEADLINE_S = 30.0


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_chunk_has_as_many_rows_as_are_read_in_the_time_agreed() -> None:
    size = ChunkSize(50_000, row_bytes=100)
    assert size.rows == 50_000
    size.learn(50_000, size=5_000_000, seconds=10 * AIM_S)
    assert size.rows == 5_000
    # A little more or less changes nothing; the last rows of a table say nothing.
    size.learn(5_000, size=500_000, seconds=1.5 * AIM_S)
    size.learn(10, size=1_000, seconds=0.01)
    assert size.rows == 5_000
    size.learn(5_000, size=500_000, seconds=AIM_S / 2)
    assert size.rows == 10_000
    size.learn(10_000, size=500_000, seconds=0.0)
    assert size.rows == 40_000
    size.learn(40_000, size=500_000, seconds=0.0)
    assert size.rows == 50_000, "never above what is set"


def test_wide_rows_are_few_in_a_chunk() -> None:
    assert ChunkSize(50_000, row_bytes=1 << 20).rows == AIM_BYTES >> 20
    assert ChunkSize(50_000, row_bytes=1 << 40).rows == 1
    # Nothing is known of them: the first are few, and then it is.
    size = ChunkSize(50_000, row_bytes=None)
    assert size.rows == 1_000
    size.learn(32, size=32 << 20, seconds=0.1)
    assert size.rows == 16
    assert ChunkSize(5, row_bytes=None).rows == 5


def test_connections_and_bytes_are_shared() -> None:
    sharing = BackfillLimits(2)
    assert sharing.try_begin()
    assert sharing.try_begin()
    assert not sharing.try_begin()
    sharing.end()
    sharing.add(10, WAITING_BYTES)
    assert not sharing.try_begin(), "the spool is full"
    sharing.remove(1)
    assert sharing.try_begin()


def test_the_rate_holds_over_all_reads() -> None:
    clock = Clock()
    sharing = BackfillLimits(4, rows_per_second=100, clock=clock)
    begun = clock.now
    rows = 0
    while rows < 10_000:
        if sharing.try_begin():
            sharing.add(200, 0)
            sharing.end()
            rows += 200
        else:
            clock.now += 0.05
    assert abs((rows - 200) / (clock.now - begun) - 100) < 1


def test_the_source_is_looked_at_now_and_then() -> None:
    clock = Clock()
    reasons = iter(["slot", "slot", None])
    sharing = BackfillLimits(1, look=lambda: next(reasons), clock=clock)
    assert [sharing.held for _ in range(9)] == ["slot"] * 9
    clock.now += 2
    assert sharing.held == "slot"
    clock.now += 2
    assert sharing.held is None


def test_reads_begin_and_end_while_the_source_is_looked_at() -> None:
    begun: list[bool] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: begun.append(sharing.try_begin()), daemon=True)
        thread.start()
        thread.join(DEADLINE_S)

    sharing = BackfillLimits(1, look=look)
    assert sharing.held is None
    assert begun == [True]
