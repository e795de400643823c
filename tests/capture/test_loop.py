"""The loop over fakes: what it stages, what it confirms, and how it ends."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc_core.backfill.marks import BeginBackfill, format_backfill_mark
from cdc_core.capture.loop import CaptureLoop, RunLimit
from cdc_core.capture.marker import Marker
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.status import StatusSender
from cdc_core.capture.transactions import Collector, Frame
from cdc_core.capture.writer import Writer
from cdc_core.errors import SourceError
from cdc_core.settings import CaptureSettings
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Lsn, TransactionId
from tests.capture.stream import TIME_US, Sent, Step, complete
from tests.deadline import wait_for
from tests.fakes import FakeLog, FakeStorage, FakeStream
from tests.protocol import encoding

EPOCH = Epoch(1, "742", 1, "walgate", "walgate", Lsn(0), datetime(2026, 1, 1, tzinfo=UTC), "test")
SUBSCRIPTION = Subscription(("walgate",), "any")
DEADLINE_S = 60.0
MARKS_FROM = 1 << 20
SENT = [
    Sent(1000, 1048, 7, (Step("announce"), *[Step("insert", value="x")] * 5)),
    Sent(1048, 1096, 8, (Step("update", value="y"),)),
    Sent(1096, 1144, 9, ()),
]


class MemoryMarks:
    """A server to which marks are written; they come back in its stream."""

    def __init__(self, stream: FakeStream) -> None:
        """Write to the end of a stream."""
        self._stream = stream
        self._at = MARKS_FROM

    def emit_mark(self, detail: str) -> None:
        """Write a mark."""
        mark = encoding.logical_message(1, 5, b"walgate", detail.encode())
        end = self._at + 48
        self._stream.arrive(
            [encoding.begin(self._at, 1, 50), mark, encoding.commit(self._at, end, 1)]
        )
        self._at = end

    def read_current_lsn(self) -> Lsn:
        """Give where the server is."""
        return Lsn(self._at)

    def require_publications(self) -> None:
        """Find them."""

    def read_retention(self) -> None:
        """Give nothing."""

    def close(self) -> None:
        """Do nothing."""


class Run:
    """A loop, its fakes, and its threads."""

    def __init__(
        self,
        frames: Iterable[bytes],
        spool: Path,
        *,
        staged: int = 0,
        expected: Iterable[TransactionId] = (),
        settings: Mapping[str, float] | None = None,
    ) -> None:
        self.storage = FakeStorage()
        self.stream = FakeStream(frames)
        log = FakeLog(self.storage, spool=spool, subscription=SUBSCRIPTION)
        log.remove_leftovers(EPOCH, Lsn(staged))
        collector = Collector(
            staged=Lsn(staged), expected=expected, complete=complete, log_time_us=0
        )
        self.bound = RunLimit(threading.Event(), until_current=True)
        self.progress = CaptureProgress(Lsn(staged), Lsn(0), Lsn(0), collector.is_replay_checked)
        self.loop = CaptureLoop(
            stream=self.stream,
            log=log,
            collector=collector,
            writer=Writer(
                log,
                epoch=EPOCH,
                progress=self.progress,
                is_stopped=self.bound.is_met,
                prepare=lambda: None,
            ),
            status=StatusSender(self.stream, progress=self.progress, timeout_s=0.2),
            marker=Marker(
                lambda: MemoryMarks(self.stream),
                progress=self.progress,
                heartbeat_s=60.0,
            ),
            progress=self.progress,
            settings=CaptureSettings.model_validate(settings or {}),
            epoch=1,
        )

    def ends(self) -> list[int]:
        """Give the end LSNs of the commits."""
        return [end for _, _, end in self.storage.commits]


def frames_of(sent: Iterable[Sent]) -> list[bytes]:
    return [frame for transaction in sent for frame in transaction.frames()]


@pytest.mark.parametrize("settings", [{}, {"batch_rows": 1}, {"spool_bytes": 1, "batch_bytes": 4}])
def test_until_current_stages_all_that_was_there_and_confirms_what_was_staged(
    tmp_path: Path, settings: dict[str, float]
) -> None:
    run = Run(frames_of(SENT), tmp_path / "spool", settings=settings)
    run.loop.run(run.bound)
    assert run.ends()[-1] == MARKS_FROM + 48
    assert set(run.stream.confirmed) <= {0, *run.ends()}
    assert run.stream.confirmed == sorted(run.stream.confirmed)
    assert run.stream.confirmed[-1] == run.progress.staged == run.ends()[-1]
    assert run.progress.rows == 6
    assert not live_threads()


def test_nothing_is_confirmed_past_the_slot_before_the_replay_is_checked(tmp_path: Path) -> None:
    # The server never sends what staging holds, so the run ends with the first mark.
    missing = [TransactionId(Lsn(1000), 7, 1)]
    run = Run([], tmp_path / "spool", staged=1048, expected=missing)
    with pytest.raises(SourceError, match="did not send the transaction"):
        run.loop.run(run.bound)
    run.loop.abandon()
    assert set(run.stream.confirmed) <= {0}
    assert run.ends() == []


def test_a_replay_that_was_checked_is_confirmed_at_once(tmp_path: Path) -> None:
    held = [transaction.identity for transaction in SENT[:2]]
    run = Run(frames_of(SENT), tmp_path / "spool", staged=1096, expected=held)
    run.loop.run(run.bound)
    assert run.stream.confirmed[-1] == MARKS_FROM + 48
    assert run.progress.rows == 0


def test_a_run_that_is_abandoned_leaves_no_thread_and_no_file(tmp_path: Path) -> None:
    half = frames_of(SENT)[:5]
    run = Run(half, tmp_path / "spool", settings={"spool_bytes": 1, "batch_bytes": 4})
    run.stream.close_when_read()
    with pytest.raises(SourceError):
        run.loop.run(run.bound)
    run.loop.abandon()
    assert not live_threads()
    assert list((tmp_path / "spool").iterdir()) == []
    assert run.ends() == []


@pytest.mark.timeout(30)
def test_the_awaited_mark_is_seen_right_before_a_transaction_that_needs_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Sent(MARKS_FROM + 48, MARKS_FROM + 96, 60, SENT[0].steps).frames()
    # One read brings the mark, three frames, and all of the large transaction but its end.
    monkeypatch.setattr("cdc_core.capture.loop._FRAMES_AT_ONCE", 3 + len(large) - 1)
    run = Run([], tmp_path / "spool", settings={"spool_bytes": 1})
    run.stream.follow_first_arrival(large)
    run.loop.run(run.bound)
    assert run.ends()[0] == MARKS_FROM + 48


def test_a_run_is_idle_once_all_that_was_there_is_staged(tmp_path: Path) -> None:
    run = Run(frames_of(SENT), tmp_path / "spool", settings={"batch_seconds": 0.05})
    stop = threading.Event()
    loop = threading.Thread(target=run.loop.run, args=[RunLimit(stop)])
    loop.start()
    wait_for(lambda: run.progress.idle_at, 30.0, "the run to be idle")
    assert run.progress.staged == MARKS_FROM + 48
    stop.set()
    loop.join()


def test_what_somebody_waits_for_is_staged_at_once(tmp_path: Path) -> None:
    step = format_backfill_mark(BeginBackfill("a" * 32, "b" * 32, "public.a")).encode()
    run = Run(frames_of(SENT), tmp_path / "spool", settings={"batch_seconds": 3600})
    at = MARKS_FROM + 48
    run.stream.follow_first_arrival(
        [
            encoding.begin(at, TIME_US, 77),
            encoding.logical_message(1, at, b"walgate", step),
            encoding.commit(at, at + 48, TIME_US),
        ]
    )
    stop = threading.Event()
    loop = threading.Thread(target=run.loop.run, args=[RunLimit(stop)])
    loop.start()
    wait_for(lambda: run.progress.staged == at + 48, 30.0, "the step to be staged")
    stop.set()
    loop.join()


def test_a_run_is_not_idle_before_its_first_mark_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryMarks, "emit_mark", lambda *_: None)
    run = Run([], tmp_path / "spool")
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    run.loop.run(RunLimit(stop))
    assert run.progress.idle_at == 0


@pytest.mark.parametrize("settings", [{}, {"spool_bytes": 1, "batch_bytes": 4}])
def test_a_transaction_that_takes_longer_than_the_run_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, float]
) -> None:
    monkeypatch.setattr(MemoryMarks, "emit_mark", lambda *_: None)
    frames = SENT[0].frames()
    run = Run(frames[:-1], tmp_path / "spool", settings=settings)
    deadline = time.monotonic() + 0.1

    def commit_late() -> None:
        run.stream.arrive(frames[-1:])

    threading.Timer(0.5, commit_late).start()
    run.loop.run(RunLimit(threading.Event(), deadline=deadline))
    assert run.ends() == [1048]
    assert run.stream.confirmed[-1] == 1048


def test_a_large_transaction_that_the_storage_refuses_is_staged_by_a_run_that_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryMarks, "emit_mark", lambda *_: None)
    first, second = (sent.frames() for sent in SENT[:2])
    settings = {"spool_bytes": 1, "batch_bytes": 4}
    run = Run([*first, *second[:-1]], tmp_path / "spool", settings=settings)

    def commit_late() -> None:
        wait_for(lambda: run.ends() == [1048], DEADLINE_S, "the first transaction")
        run.storage.refusals[:] = ["before", "before"]
        run.stream.arrive(second[-1:])

    late = threading.Thread(target=commit_late)
    late.start()
    run.loop.run(RunLimit(threading.Event(), deadline=time.monotonic()))
    late.join()
    assert run.ends() == [1048, 1096]
    assert run.storage.refusals == []


def test_a_late_run_takes_nothing_more_until_its_large_transaction_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another batch would be refused, and that ends a late run."""
    monkeypatch.setattr(MemoryMarks, "emit_mark", lambda *_: None)
    settings = {"spool_bytes": 1, "batch_bytes": 4}
    *frames, commit = SENT[0].frames()
    run = Run(frames, tmp_path / "spool", settings=settings)
    run.storage.refusals[:] = ["before"] * 2
    read = run.stream.read_frames

    def read_busily(*, most: int, wait_s: float) -> list[Frame]:
        frames = read(most=most, wait_s=wait_s)
        run.stream.arrive(next(arriving))
        return frames

    def arrive() -> Iterator[Sequence[Frame]]:
        yield [commit]
        # From now on something has come each time that somebody looks.
        for at in itertools.count(2000, 48):
            yield Sent(at, at + 48, at, (Step("insert"),)).frames()

    arriving = arrive()
    monkeypatch.setattr(run.stream, "read_frames", read_busily)
    run.loop.run(RunLimit(threading.Event(), deadline=time.monotonic()))
    assert run.ends() == [1048]


def test_a_run_that_is_late_ends_at_once_when_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryMarks, "emit_mark", lambda *_: None)
    frames = SENT[0].frames()[:-1]
    settings = {"spool_bytes": 1, "batch_bytes": 4}
    run = Run(frames, tmp_path / "spool", settings=settings)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    run.loop.run(RunLimit(stop, deadline=time.monotonic()))
    assert 1048 not in run.ends()
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_run_ends_at_its_deadline_once_it_has_staged(tmp_path: Path) -> None:
    run = Run(frames_of(SENT), tmp_path / "spool", settings={"batch_seconds": 0.01})
    run.loop.run(RunLimit(threading.Event(), deadline=time.monotonic()))
    assert run.ends()


def live_threads() -> list[str]:
    """Give the names of capture's threads that run."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("walgate")]
