"""What capture needs of the world: the source's stream, the log, coordination.

The three shores. Each has a real part and an in-memory twin that the tests share; one suite holds
both to the same behaviour.
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
        """Frames that have arrived, at most `most`; empty after `wait_s` of silence."""
        ...

    def send_status(self, flushed: Lsn) -> None:
        """Confirm everything up to `flushed`."""
        ...


class ChangeLog(Protocol):
    """Where batches land, and what is known of progress."""

    def read_epoch(self) -> Epoch | None:
        """The newest incarnation of the slot; None before the first run."""
        ...

    def begin_epoch(self, epoch: Epoch) -> None:
        """Record a new incarnation of the slot."""
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
        """Remove what an earlier run left: spooled parts, and relations that have not landed."""
        ...

    def read_staged(self, epoch: Epoch) -> Lsn:
        """The staged LSN, read from the newest version."""
        ...

    def read_transactions(self, epoch: Epoch, *, since: Lsn) -> Iterator[TransactionId]:
        """The transactions held from commit LSN `since` on, in commit order."""
        ...

    def store_relations(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Write the relations not stored yet."""
        ...

    def write_part(self, changes: pa.Table) -> Part:
        """Write changes to a part that no reader sees yet."""
        ...

    def open_spool(self) -> PartWriter:
        """A part in the spool, to be written while its transaction arrives."""
        ...

    def append(self, parts: Sequence[Part], *, epoch: Epoch, end_lsn: Lsn) -> None:
        """Commit parts that reach `end_lsn`, all or none."""
        ...

    def has_landed(self, parts: Sequence[Part]) -> bool:
        """Whether an append that failed has landed all the same."""
        ...


class Coordination(Protocol):
    """Live figures and wake-ups; losing any of it loses nothing."""

    def take_term(self) -> int | None:
        """A new term for this run; None where coordination is down."""
        ...

    def publish(self, figures: Figures) -> bool:
        """Show figures; False where coordination is down."""
        ...
