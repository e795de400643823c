"""Fakes of the three interfaces, in memory: for capture's tests that need no service.

`tests/capture/test_interfaces.py` and `test_coordination.py` hold each fake and its real part to
the same behaviour.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.coordination.live import Figures
from cdc_core.errors import Retry, SourceError, StagingError
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Fenced
from cdc_core.staging.parts import Part, PartWriter
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Lsn, Relation, TransactionId

Frame = bytes | memoryview


@dataclass
class FakeStorage:
    """What several logs share: commits as (names of parts, application, end LSN), and epochs."""

    commits: list[tuple[set[str], str, int]] = field(default_factory=list)
    changes: dict[str, pa.Table] = field(default_factory=dict)
    subscriptions: list[Subscription] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    relations: list[tuple[int, Relation, Lsn]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    floor: int = 0
    trimmed: int = 0


class FakeLog:
    """A log in memory; `storage.refusals` makes the next appends fail before or after they land."""

    def __init__(self, storage: FakeStorage, *, spool: Path, subscription: Subscription) -> None:
        """Open at the newest version."""
        self.subscription = subscription
        self._storage = storage
        self._spool = spool
        self._version = len(storage.commits)
        self._landed_before: Lsn | None = None
        self._own: set[int] = set()
        self._epoch: int | None = None

    def read_epoch(self) -> Epoch | None:
        """Give the newest incarnation of the slot."""
        ordered = sorted(
            self._storage.epochs, key=lambda epoch: (epoch.epoch, epoch.first_lsn, epoch.timeline)
        )
        return ordered[-1] if ordered else None

    def begin_epoch(self, epoch: Epoch) -> None:
        """Record a new incarnation."""
        self._storage.epochs.append(epoch)

    def read_subscription(self) -> Subscription | None:
        """Give what the newest changes were sent for."""
        return self._storage.subscriptions[self._version - 1] if self._version else None

    def latest_relation(self, oid: int) -> Relation | None:
        """Give the newest stored relation of a table."""
        landed, stored = self._landed_before, self._storage.relations
        newest = self._epoch or max((epoch for epoch, _, _ in stored), default=0)
        known = [
            (lsn, index)
            for index, (epoch, relation, lsn) in enumerate(stored)
            if (epoch, relation.oid) == (newest, oid)
            and (landed is None or lsn < landed or index in self._own)
        ]
        return stored[max(known)[1]][1] if known else None

    def remove_leftovers(self, epoch: Epoch, staged: Lsn) -> None:
        """Remove what an earlier run left."""
        self._storage.relations[:] = [
            stored
            for stored in self._storage.relations
            if stored[0] != epoch.epoch or stored[2] < staged
        ]
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._spool.glob("part-*.parquet"):
            left.unlink()

    def read_staged(self, epoch: Epoch) -> Lsn:
        """Give the staged LSN; the handle then stands at the newest version."""
        self._version = len(self._storage.commits)
        ends = [end for _, name, end in self._storage.commits if name == epoch.application]
        self._landed_before = Lsn(ends[-1]) if ends else epoch.first_lsn
        self._own.clear()
        self._epoch = epoch.epoch
        return self._landed_before

    def read_transactions(self, epoch: Epoch, *, since: Lsn) -> Iterator[TransactionId]:
        """Give the transactions held from a commit LSN on."""
        found = set()
        for parts, _, _ in self._storage.commits[: self._version]:
            for part in parts:
                table = self._storage.changes[part]
                times = table.column("committed_at").cast(pa.int64()).to_pylist()
                for row, at in zip(table.to_pylist(), times, strict=True):
                    if row["epoch"] == epoch.epoch and row["commit_lsn"] >= since:
                        found.add(TransactionId(Lsn(row["commit_lsn"]), row["xid"], at))
        yield from sorted(found, key=lambda known: known.commit_lsn)

    def read_trimmed(self, epoch: Epoch) -> Lsn:  # noqa: ARG002 - The log has one epoch.
        """Give the end LSN up to which transactions may be missing."""
        return Lsn(self._storage.trimmed)

    def tend(self, epoch: int, confirmed: Lsn) -> bool:  # noqa: ARG002 - The same.
        """Trim as far as the floor allows."""
        limit = min(self._storage.floor, confirmed)
        for names, _, end in self._storage.commits[:-1]:
            if self._storage.trimmed < end <= limit:
                for name in names:
                    self._storage.changes[name] = self._storage.changes[name].slice(0, 0)
                self._storage.trimmed = end
        return False

    def store_relations(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Write each relation in its order; again, it is written again."""
        for relation, lsn in relations:
            self._own.add(len(self._storage.relations))
            self._storage.relations.append((epoch, relation, lsn))

    def write_part(self, changes: pa.Table) -> Part:
        """Write changes to a part that no reader sees yet."""
        name = f"part-{len(self._storage.changes)}.parquet"
        self._storage.changes[name] = changes
        return Part(path=Path(name), rows=changes.num_rows, bounds={})

    def read_log_time_us(self) -> int:
        """Give the newest log time."""
        return max(
            (
                pc.max(self._storage.changes[part].column("log_time").cast(pa.int64())).as_py() or 0
                for parts, _, _ in self._storage.commits[: self._version]
                for part in parts
            ),
            default=0,
        )

    def open_spool(self) -> PartWriter:
        """Open a part in the spool."""
        return PartWriter(self._spool)

    def append(self, parts: Sequence[Part], *, epoch: Epoch, end_lsn: Lsn) -> None:
        """Commit parts, all or none."""
        refusal = self._storage.refusals.pop(0) if self._storage.refusals else None
        if refusal == "before":
            raise _refused()
        if len(self._storage.commits) != self._version:
            raise _refused()
        for part in parts:
            if isinstance(part.path, Path) and part.path.exists():
                self._storage.changes[part.path.name] = pq.read_table(part.path)
                part.path.unlink()
        names = {part.path.name for part in parts}
        self._storage.commits.append((names, epoch.application, int(end_lsn)))
        self._storage.subscriptions.append(self.subscription)
        if refusal == "after":
            raise _refused()
        self._version += 1

    def has_landed(self, parts: Sequence[Part]) -> bool:
        """Tell whether an append that failed has landed all the same."""
        if len(self._storage.commits) == self._version:
            return False
        if parts[0].path.name not in self._storage.commits[self._version][0]:
            raise Fenced
        self._version += 1
        return True


class FakeStream:
    """A stream of given frames; keeps what was confirmed."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        """Hold the frames."""
        self._frames = list(frames)
        self._is_closed = False
        self._ends = False
        self._followers: list[Frame] = []
        self.confirmed: list[Lsn] = []

    def read_frames(self, *, most: int, wait_s: float) -> list[Frame]:
        """Give frames that have arrived, at most `most`."""
        del wait_s
        self._require_open()
        read = self._frames[:most]
        del self._frames[: len(read)]
        self._is_closed = self._ends
        return read

    def send_status(self, flushed: Lsn) -> None:
        """Keep what was confirmed."""
        self._require_open()
        self.confirmed.append(flushed)

    def arrive(self, frames: Iterable[Frame]) -> None:
        """Have more frames to read."""
        self._frames += [*frames, *self._followers]
        self._followers = []

    def follow_first_arrival(self, frames: Iterable[Frame]) -> None:
        """Have these frames come together with what arrives next."""
        self._followers = list(frames)

    def close(self) -> None:
        """End the stream."""
        self._is_closed = True

    def close_when_read(self) -> None:
        """End the stream behind its frames; what arrives later is lost."""
        self._ends = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise SourceError("the stream has ended", fix="start again", retry=Retry.LATER)


class FakeCoordination:
    """Terms and figures; down when told so."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._term = 0
        self._figures: Figures | None = None
        self._listeners: list[FakeWakeups] = []
        self.is_down = False

    def take_term(self) -> int | None:
        """Give a new term; None where coordination is down."""
        if self.is_down:
            return None
        self._term += 1
        return self._term

    def publish(self, figures: Figures) -> bool:
        """Show figures."""
        if self.is_down:
            return False
        if self._figures is None or self._figures.staged_lsn != figures.staged_lsn:
            for listener in self._listeners:
                listener.wake()
        self._figures = figures
        return True

    def read_figures(self) -> Figures | None:
        """Give what was shown last."""
        return None if self.is_down else self._figures

    def listen(self) -> FakeWakeups:
        """Give what hears each new staged LSN."""
        self._listeners.append(FakeWakeups())
        return self._listeners[-1]


class FakeWakeups:
    """Announcements that another object makes."""

    def __init__(self) -> None:
        """Have heard nothing."""
        self._news = threading.Event()

    def wait(self, seconds: float) -> None:
        """Return once there was news since the last wait, or after `seconds`."""
        self._news.wait(seconds)
        self._news.clear()

    def wake(self) -> None:
        """End the wait of another thread."""
        self._news.set()

    def close(self) -> None:
        """End the wait of another thread, for good."""
        self._news.set()


def _refused() -> StagingError:
    return StagingError("cannot commit to the log: refused", fix="wait", retry=Retry.LATER)
