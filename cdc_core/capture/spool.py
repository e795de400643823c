"""Writes one transaction that is too large for memory to parts on disk while it arrives."""

from __future__ import annotations

from cdc_core.capture.batches import Batch
from cdc_core.capture.interfaces import ChangeLog
from cdc_core.capture.writer import PendingBatch
from cdc_core.staging.parts import Part, PartWriter, seal_part
from cdc_core.vocabulary import Lsn, Relation

# Readers split files by row group anyway; one part stays easy to copy and to skip.
_PART_BYTES = 256 << 20
# A write first copies the rows into columns, so write a little at a time.
_GROUP_ROWS = 50_000


class Spool:
    """The parts of one transaction so far. One commit stages all of them, or none."""

    def __init__(self, log: ChangeLog, *, epoch: int) -> None:
        """Start without a part; `write` opens the first."""
        self._log = log
        self._epoch = epoch
        self._parts: list[Part] = []
        self._writer: PartWriter | None = None
        self._relations: list[tuple[Relation, Lsn]] = []
        self._rows = 0
        self._committed_at_us = 0

    def write(self, batch: Batch) -> None:
        """Write what has arrived since the last call. Raises: OSError."""
        self._relations += batch.relations
        self._committed_at_us = batch.committed_at_us
        self._rows += batch.rows
        for piece in batch.pieces(_GROUP_ROWS):
            if self._writer is None:
                self._writer = self._log.open_spool()
            self._writer.write(piece.to_table(self._epoch))
            if self._writer.bytes_written >= _PART_BYTES:
                self._end_part()

    def seal(self, end_lsn: Lsn) -> PendingBatch:
        """Return the whole transaction, with its end LSN filled in, ready to be staged."""
        self._end_part()
        return PendingBatch(
            end_lsn=end_lsn,
            committed_at_us=self._committed_at_us,
            rows=self._rows,
            transactions=1,
            relations=tuple(self._relations),
            batch=None,
            parts=[seal_part(part, end_lsn) for part in self._parts],
        )

    def discard(self) -> None:
        """Remove what was written: the transaction will arrive again."""
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
        for part in self._parts:
            part.remove()

    def _end_part(self) -> None:
        if self._writer is not None:
            self._parts.append(self._writer.finish())
            self._writer = None
