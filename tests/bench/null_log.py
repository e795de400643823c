"""A log that drops every finished batch: what receiving costs by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from cdc_core.staging.epochs import Epoch
from cdc_core.staging.parts import Part, PartWriter
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Lsn, Relation, TransactionId


class NullLog:
    """The log of one run; it counts the entries that were finished."""

    subscription = Subscription((), "any")

    def __init__(self, spool: Path) -> None:
        """Hold nothing."""
        self._spool = spool
        self._epoch: Epoch | None = None
        self.entries = 0

    def read_epoch(self) -> Epoch | None:
        """The epoch that was begun."""
        return self._epoch

    def begin_epoch(self, epoch: Epoch) -> None:
        """Keep it."""
        self._epoch = epoch

    def latest_relation(self, oid: int) -> Relation | None:
        """None is stored."""
        del oid
        return None

    def remove_leftovers(self, epoch: Epoch, staged: Lsn) -> None:
        """There are none."""

    def read_subscription(self) -> None:
        """Nothing is staged."""

    def read_staged(self, epoch: Epoch) -> Lsn:
        """Nothing is staged."""
        return epoch.first_lsn

    def read_log_time_us(self) -> int:
        """Nothing is kept."""
        return 0

    def read_transactions(self, epoch: Epoch, *, since: Lsn) -> Iterator[TransactionId]:
        """None."""
        del epoch, since
        return iter(())

    def read_trimmed(self, epoch: Epoch) -> Lsn:
        """Nothing was trimmed."""
        del epoch
        return Lsn(0)

    def tend(self, epoch: int, confirmed: Lsn) -> bool:
        """There is nothing to do."""
        del epoch, confirmed
        return False

    def store_relations(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Drop them."""

    def write_part(self, changes: pa.Table) -> Part:
        """Count the changes of rows and drop them."""
        self.entries += changes.num_rows - changes.column("table").null_count
        return Part(Path("dropped"), changes.num_rows, {})

    def open_spool(self) -> PartWriter:
        """A part that is never appended."""
        return PartWriter(self._spool)

    def append(self, parts: Sequence[Part], *, epoch: Epoch, end_lsn: Lsn) -> None:
        """Nothing lands."""

    def has_landed(self, parts: Sequence[Part]) -> bool:
        """Never."""
        del parts
        return False
