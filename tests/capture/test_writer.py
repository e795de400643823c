"""The writer over a log in memory: what did not land is tried again, and nothing lands twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.transactions import Collector
from cdc_core.capture.writer import PendingBatch, Writer
from cdc_core.errors import Retry, StagingError
from cdc_core.layout import CHANGES_SCHEMA
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Fenced
from cdc_core.staging.parts import PartLost
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Lsn
from tests.capture.stream import Sent, Step, complete
from tests.deadline import wait_for
from tests.fakes import FakeLog, FakeStorage

DEADLINE_S = 30.0
EPOCH = Epoch(1, "742", 1, "walgate", "walgate", Lsn(0), datetime(2026, 1, 1, tzinfo=UTC), "test")
SUBSCRIPTION = Subscription(("walgate",), "any")


class Bench:
    """A writer, its log and its progress."""

    def __init__(self, folder: Path) -> None:
        self.storage = FakeStorage()
        self.log = FakeLog(self.storage, spool=folder, subscription=SUBSCRIPTION)
        self.progress = CaptureProgress(Lsn(0), Lsn(0), Lsn(0), is_replay_checked=True)
        self.is_stopped = False
        self.prepared: list[int] = []
        self.unprepared: list[Exception] = []
        self.writer = Writer(
            self.log,
            epoch=EPOCH,
            progress=self.progress,
            is_stopped=lambda: self.is_stopped,
            prepare=self.prepare,
        )
        self._at = 1000

    def prepare(self) -> None:
        """Note how many commits the log had."""
        self.prepared.append(len(self.storage.commits))
        if self.unprepared:
            raise self.unprepared.pop()

    def submit(self) -> int:
        """Hand over a transaction of one row; its end LSN."""
        collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
        end_lsn = self._at + 48
        steps = (Step("announce"), Step("insert"))
        collector.feed(Sent(self._at, end_lsn, 7, steps).frames())
        self._at = end_lsn
        batch = collector.take()
        assert batch is not None
        self.writer.submit(
            PendingBatch(
                end_lsn=batch.end_lsn,
                committed_at_us=batch.committed_at_us,
                rows=batch.rows,
                transactions=1,
                relations=batch.relations,
                batch=batch,
            )
        )
        return end_lsn

    def commits(self) -> list[int]:
        """Give the end LSNs that were committed, in order."""
        return [end for _, _, end in self.storage.commits]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.storage.refusals.clear()
    if made.writer.thread.failure is None:
        made.writer.finish()


def test_landings_are_staged_in_order_and_then_confirmable(bench: Bench) -> None:
    ends = [bench.submit() for _ in range(5)]
    bench.writer.finish()
    assert bench.commits() == ends
    assert bench.progress.confirmable == bench.progress.staged == ends[-1]
    assert (bench.progress.rows, bench.progress.batches) == (5, 5)
    assert bench.writer.is_idle


@pytest.mark.parametrize("refusals", [["before"], ["after"], ["before", "after"]])
def test_a_refused_append_lands_once(bench: Bench, refusals: list[str]) -> None:
    bench.storage.refusals += refusals
    ends = [bench.submit(), bench.submit()]
    wait_for(lambda: bench.progress.staged == ends[-1], DEADLINE_S, "both to be staged")
    assert bench.commits() == ends
    assert bench.progress.storage_error is None


def test_nothing_is_confirmable_before_its_commit_has_returned(bench: Bench) -> None:
    bench.storage.refusals += ["before"] * 2
    end_lsn = bench.submit()
    wait_for(lambda: bench.progress.storage_error, DEADLINE_S, "the refusal")
    assert bench.progress.confirmable == bench.progress.staged == 0
    assert not bench.writer.is_idle
    wait_for(lambda: bench.progress.confirmable == end_lsn, DEADLINE_S, "it to be staged")


def test_another_writers_commit_ends_the_writer(bench: Bench) -> None:
    other = FakeLog(bench.storage, spool=Path(), subscription=SUBSCRIPTION)
    part = other.write_part(CHANGES_SCHEMA.empty_table())
    other.append([part], epoch=EPOCH, end_lsn=Lsn(9000))
    bench.submit()
    wait_for(lambda: bench.writer.thread.failure, DEADLINE_S, "the writer to end")
    with pytest.raises(Fenced):
        bench.writer.thread.require_alive()
    with pytest.raises(Fenced):
        bench.submit()
    assert bench.commits() == [9000]
    assert bench.progress.confirmable == 0


def test_a_part_that_is_lost_ends_the_writer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing brings it back; in the next session the transaction arrives again."""

    def lose(*_: object, **__: object) -> None:
        raise PartLost("part is gone", fix="none", retry=Retry.LATER)

    monkeypatch.setattr(bench.log, "append", lose)
    bench.submit()
    wait_for(lambda: bench.writer.thread.failure, DEADLINE_S, "the writer to end")
    with pytest.raises(PartLost):
        bench.writer.thread.require_alive()
    assert bench.progress.confirmable == 0


def test_a_stopped_run_does_not_wait_for_storage_that_refuses(bench: Bench) -> None:
    bench.storage.refusals += ["before"] * 50
    bench.submit()
    wait_for(lambda: bench.progress.storage_error, DEADLINE_S, "the refusal")
    bench.is_stopped = True
    with pytest.raises(StagingError, match="stopped before it staged or confirmed the batch"):
        bench.submit()
    with pytest.raises(StagingError, match="stopped before it staged or confirmed the batch"):
        bench.writer.finish()
    assert bench.commits() == []
    assert bench.progress.confirmable == 0


def test_what_is_to_be_done_before_the_first_commit_is_done_once_and_again_if_it_fails(
    bench: Bench,
) -> None:
    bench.unprepared.append(OSError(28, "No space left on device"))
    end_lsn = [bench.submit(), bench.submit()][-1]
    wait_for(lambda: bench.progress.staged == end_lsn, DEADLINE_S, "both to be staged")
    assert bench.prepared == [0, 0]
