"""The three interfaces of capture to the outside: the source's stream, the log, coordination.

Each has a real part and an in-memory fake for tests. The same tests check both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from cdc_core.coordination.live import Figures
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.parts import Part, PartWriter
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Lsn, Relation, TransactionId

Frame = bytes | memoryview


class Stream(Protocol):
    """A started replication stream."""

    def read_frames(self, *, most: int, wait_s: float) -> list[Frame]:
        """The frames that have arrived, at most `most`; none after `wait_s` seconds of silence."""
        ...

    def send_status(self, flushed: Lsn) -> None:
        """Confirm everything up to `flushed`."""
        ...


class ChangeLog(Protocol):
    """The log that capture stages batches in, and reads its progress from."""

    def read_epoch(self) -> Epoch | None:
        """The newest epoch; None before the first run."""
        ...

    def begin_epoch(self, epoch: Epoch) -> None:
        """Record a new epoch, or new facts of the newest."""
        ...

    @property
    def subscription(self) -> Subscription:
        """The publications and the origin that the appended changes were requested with."""
        ...

    def read_subscription(self) -> Subscription | None:
        """The publications and the origin of the newest changes; None if there are no changes."""
        ...

    def latest_relation(self, oid: int) -> Relation | None:
        """The newest stored relation of a table."""
        ...

    def remove_leftovers(self, epoch: Epoch, staged: Lsn) -> None:
        """Remove what an earlier run left: the spool, and relations whose batch is not staged."""
        ...

    def read_staged(self, epoch: Epoch) -> Lsn:
        """The staged LSN, read from the newest version."""
        ...

    def read_log_time_us(self) -> int:
        """The newest log time of the version that `read_staged` opened last; 0 if it is empty."""
        ...

    def read_transactions(self, epoch: Epoch, *, since: Lsn) -> Iterator[TransactionId]:
        """The transactions that the log has from commit LSN `since` on, in commit order."""
        ...

    def read_trimmed(self, epoch: Epoch) -> Lsn:
        """The end LSN up to which the log of an epoch may lack transactions; 0 if it has all."""
        ...

    def store_relations(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Store the relations that are not stored yet."""
        ...

    def write_part(self, changes: pa.Table) -> Part:
        """Write changes to a part that no reader sees yet."""
        ...

    def open_spool(self) -> PartWriter:
        """Open a part in the spool, to write to it while its transaction arrives."""
        ...

    def append(self, parts: Sequence[Part], *, epoch: Epoch, end_lsn: Lsn) -> None:
        """Commit parts, all or none; the staged LSN becomes `end_lsn`."""
        ...

    def has_landed(self, parts: Sequence[Part]) -> bool:
        """Whether the log has the parts although their append failed."""
        ...

    def tend(self, epoch: int, confirmed: Lsn) -> bool:
        """Trim, compact or clean the log a little; whether there may be more to do at once."""
        ...


class Coordination(Protocol):
    """Live figures and wake-ups. If they are lost, no change is lost."""

    def take_term(self) -> int | None:
        """A new term for this run; None if coordination is down."""
        ...

    def publish(self, figures: Figures) -> bool:
        """Publish figures; False if coordination is down."""
        ...
