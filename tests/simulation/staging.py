"""The log with its tail, the spool, and the ledger of backfills, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from cdc_core.capture.batches import Batch
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.spooled import Chunk, Key, Scope, SweepRequest
from cdc_core.staging.backfills import Begun, StagedChunk
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.incomplete_updates import IncompleteUpdate
from cdc_core.staging.tail import Staged
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Lsn, Operation, Position, TableName, TransactionId
from spark_jobs.lake.lake import Bound

_TOLD = {Operation.MARK.value, Operation.SWEEP.value}
BEGUN_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the log."""

    position: Position
    end_lsn: int
    table: str | None
    version: int | None
    op: str
    values: list[str | None] | None
    unchanged: list[int] | None
    old: list[str | None] | None
    detail: str | None


@dataclass
class SimulatedLog:
    """What is staged, in the order of commits; relations as `staging/relations` has them."""

    entries: list[Entry] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    relations: list[dict[str, Any]] = field(default_factory=list)
    told: list[Staged] = field(default_factory=list)
    sweeps: set[Position] = field(default_factory=set)
    # The epoch of each commit, the end LSN that it reaches, its entries.
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    staged: dict[int, int] = field(default_factory=dict)
    # Merges and readers no longer see the entries up to here. The judge does.
    trimmed: Bound | None = None
    transactions: dict[int, list[TransactionId]] = field(default_factory=dict)

    def begin_epoch(self, *, first_lsn: int, system: str, timeline: int) -> Epoch:
        """A new incarnation of the slot."""
        number = len(self.epochs) + 1
        epoch = Epoch(
            number, system, timeline, "walgate", "walgate", Lsn(first_lsn), BEGUN_AT, "simulated"
        )
        self.epochs.append(epoch)
        self.staged[number] = first_lsn
        self.transactions[number] = []
        return epoch

    def append(self, batch: Batch, epoch: Epoch) -> None:
        """Land a batch."""
        landed = sorted(_read_batch(batch, epoch.epoch), key=lambda entry: entry.position)
        self.entries += landed
        self.batches.append((epoch.epoch, int(batch.end_lsn), len(landed)))
        facts = batch.transactions
        held = self.transactions[epoch.epoch]
        for lsn, xid, at in zip(facts.commit_lsn, facts.xid, facts.committed_at_us, strict=True):
            held.append(TransactionId(Lsn(lsn), xid, at))
        self.staged[epoch.epoch] = int(batch.end_lsn)
        self.sweeps |= {entry.position for entry in landed if entry.op == Operation.SWEEP.value}
        self.told += [
            Staged(entry.position, Lsn(entry.end_lsn), entry.detail or "")
            for entry in landed
            if entry.op in _TOLD
        ]

    def read_transactions(self, epoch: Epoch, since: int) -> list[TransactionId]:
        """What is held from a commit LSN on."""
        return [one for one in self.transactions[epoch.epoch] if one.commit_lsn >= since]

    def read_unsent(
        self, table: TableName, since: Position, wanted: Collection[Key]
    ) -> list[IncompleteUpdate]:
        """What `staging.unsent.read_unsent` gives, of tables keyed by their first column."""
        found: list[IncompleteUpdate] = []
        for entry in self.entries:
            is_since = entry.position.epoch == since.epoch
            is_since = is_since and entry.position.commit_lsn >= since.commit_lsn
            if entry.table != str(table) or entry.unchanged is None or not is_since:
                continue
            new, old = (_take_key(texts) for texts in (entry.values, entry.old))
            assert new is not None
            moved_from = old if old != new else None
            if moved_from is not None or new in wanted:
                found.append(IncompleteUpdate(entry.position, new, moved_from))
        return sorted(found, key=lambda one: one.position)

    def read_marks(self, since: Position) -> list[Staged]:
        """What `staging.tail.read_marks` gives."""
        return [
            told
            for told in self.told
            if told.position.epoch == since.epoch
            and told.position.commit_lsn >= since.commit_lsn
            and told.position not in self.sweeps
        ]


class SimulatedTail:
    """What is committed to the log from now on."""

    def __init__(self, log: SimulatedLog) -> None:
        """Begin behind the newest commit."""
        self._log = log
        self._at = len(log.told)

    def read(self) -> Iterator[Staged]:
        """What was committed since the last call."""
        told = self._log.told[self._at :]
        self._at = len(self._log.told)
        yield from told


@dataclass
class SimulatedSpool:
    """What workers leave for capture."""

    chunks: dict[tuple[str, str, int, int], Chunk] = field(default_factory=dict)
    sweeps: dict[str, SweepRequest] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)

    def store(self, chunk: Chunk, *, backfill: str, memory: str, number: int, attempt: int) -> int:
        self.chunks[backfill, memory, number, attempt] = chunk
        return 1

    def load(self, *, backfill: str, memory: str, number: int, attempt: int) -> Chunk | None:
        return self.chunks.get((backfill, memory, number, attempt))

    def discard(self, *, backfill: str, memory: str, number: int, attempt: int) -> None:
        self.chunks.pop((backfill, memory, number, attempt), None)

    def store_sweep(self, sweeping: SweepRequest, *, backfill: str) -> None:
        self.sweeps[backfill] = sweeping

    def load_sweep(self, backfill: str) -> SweepRequest | None:
        return self.sweeps.get(backfill)

    @contextmanager
    def claim(self, backfill: str) -> Iterator[None]:
        for key in [key for key in self.chunks if key[0] == backfill]:
            del self.chunks[key]
        self.claimed.add(backfill)
        try:
            yield
        finally:
            self.claimed.discard(backfill)

    def is_claimed(self, backfill: str) -> bool:
        return backfill in self.claimed

    def empty(self) -> None:
        self.chunks.clear()
        self.sweeps.clear()


@dataclass
class SimulatedLedger:
    """`ledger/backfills`: the backfills that began, their states, and where they were swept."""

    begun: list[Begun] = field(default_factory=list)
    states: dict[str, BackfillState] = field(default_factory=dict)
    swept: dict[str, int] = field(default_factory=dict)

    def find_unfinished(self, table: TableName, scope: Scope) -> SimpleNamespace | None:
        for begun in reversed(self.begun):
            is_same = (begun.table, begun.scope) == (table, scope)
            if is_same and self.states[begun.id] is not BackfillState.DONE:
                state = self.states[begun.id]
                return SimpleNamespace(begun=begun, state=state, rows_estimated=None)
        return None

    def record_begun(self, begun: Begun, rows_estimated: int | None) -> None:
        del rows_estimated
        self.begun.append(begun)
        self.states[begun.id] = BackfillState.BEGUN

    def record_state(
        self,
        begun: Begun,
        state: BackfillState,
        *,
        swept: Lsn | None = None,
        reason: str | None = None,
    ) -> None:
        del reason
        self.states[begun.id] = state
        if swept is not None:
            self.swept[begun.id] = int(swept)

    def record_chunks(self, begun: Begun, chunks: list[StagedChunk]) -> None:
        del begun, chunks

    def find_recorded(self, begun: Begun) -> set[int]:
        del begun
        return set()


def _read_batch(batch: Batch, epoch: int) -> Iterator[Entry]:
    """The entries of a batch; `Batch.to_table` would take a third of all the time of a history."""
    facts = batch.transactions

    def place(transaction: int, seq: int) -> tuple[Position, int]:
        commit_lsn = Lsn(facts.commit_lsn[transaction])
        return Position(epoch, commit_lsn, seq), facts.end_lsn[transaction]

    for entry in batch.entries:
        where = place(entry.transaction, entry.seq)
        version, op = entry.relation_version, str(entry.operation)
        yield Entry(*where, entry.table, version, op, None, None, None, entry.detail)
    for block in batch.blocks:
        runs = zip(block.runs.transaction, block.runs.first_seq, block.runs.rows, strict=True)
        places = [place(of, first + n) for of, first, count in runs for n in range(count)]
        columns = [block.decoded.column(name).to_pylist() for name in DECODED_SCHEMA.names]
        for where, row in zip(places, zip(*columns, strict=True), strict=True):
            yield Entry(*where, *row)


def _take_key(texts: list[str | None] | None) -> Key | None:
    return None if texts is None or texts[0] is None else (texts[0],)


def keep_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows of a small table of the log."""
    kept: list[dict[str, Any]] = rows.to_pylist()
    return kept
