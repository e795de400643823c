"""Collects whole transactions from frames.

Theory. The server sends transactions in commit order, each whole: Begin, its changes, Commit. A
change's position is (epoch, commit LSN, seq). seq counts every entry and every transactional
message of the transaction before any filter. So a replay gives a change the same number. Rows wait
as frames. The collector decodes a block of frames at a time, by the relation that was announced
before them.

After a restart, the server sends all unconfirmed transactions again. The collector drops those that
are staged (replay.py).

Pure: no I/O and no clock; `complete` adds what only the catalog knows of a relation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from cdc_core.backfill.marks import BackfillMark
from cdc_core.capture.backfills import NOTHING_SPOOLED, Backfills, Spooled
from cdc_core.capture.batches import Batch, Block, Entry, Runs, Transactions, split_blocks
from cdc_core.capture.concealing import conceal_nothing
from cdc_core.capture.marks import describe_mark, format_mark, is_ours, read_mark
from cdc_core.capture.open_transaction import OpenTransaction
from cdc_core.capture.replay import Replay
from cdc_core.errors import UnexpectedMessage
from cdc_core.layout import END_LSN_NOT_KNOWN
from cdc_core.protocol.concealment import Conceal
from cdc_core.protocol.frames import HEADER_SIZE, KEEPALIVE, XLOG_DATA
from cdc_core.protocol.messages import (
    ROW_KINDS,
    Announcement,
    Begin,
    Commit,
    LogicalMessage,
    Origin,
    StreamAbort,
    Truncate,
    TypeName,
    parse_message,
)
from cdc_core.protocol.rows import RelationFrom, decode_rows
from cdc_core.vocabulary import Lsn, Operation, Relation, TransactionId

Frame = bytes | memoryview

# In the decoder, a NULL of one byte on the wire takes some 30 bytes of memory.
BLOCK_ROWS = 10_000
BLOCK_BYTES = 4 << 20


class Collector:
    """Whole transactions, collected from frames until they are taken as a batch."""

    def __init__(
        self,
        *,
        staged: Lsn,
        expected: Iterable[TransactionId],
        complete: Callable[[Announcement, int], Relation],
        log_time_us: int,
        changed: str | None = None,
        trimmed: int = 0,
        conceal: Conceal = conceal_nothing,
        spooled: Spooled = NOTHING_SPOOLED,
    ) -> None:
        """Drop transactions up to `staged`; they must be exactly `expected` (see Replay).

        `complete` receives an announcement and its transaction's xid. `log_time_us` is the newest
        log time of the log.
        """
        self._replay = Replay(staged, expected, changed=changed, trimmed=trimmed)
        self._complete = complete
        self._conceal = conceal
        self._backfills = Backfills(spooled)
        self._last_end = Lsn(0)
        self._known: dict[int, RelationFrom] = {}
        self._announced: list[RelationFrom] = []
        self._relations: list[tuple[Relation, Lsn]] = []
        self._frames: list[Frame] = []
        self._runs = Runs()
        self._blocks: list[Block] = []
        self._entries: list[Entry] = []
        self._transactions = Transactions(previous_log_time_us=log_time_us)
        self._open: OpenTransaction | None = None
        self._size = 0
        self._waiting_size = 0
        self._rows = 0
        self.patience = 1.0  # The share of a batch's time for which transactions may wait.
        self.spool_ended: Lsn | None = None
        self.skipped_messages = 0  # Foreign messages with Walgate's prefix.

    @property
    def is_replay_checked(self) -> bool:
        """Whether the server has sent again every staged transaction past the slot."""
        return self._replay.is_checked

    @property
    def closed_transactions(self) -> int:
        """How many whole transactions wait to be taken."""
        return len(self._transactions.xid) - (self._open is not None and not self._open.replayed)

    @property
    def rows(self) -> int:
        """The number of rows that wait, with those of the open transaction."""
        return self._rows + len(self._frames)

    @property
    def size(self) -> int:
        """The bytes that wait, with those of the open transaction."""
        return self._size

    @property
    def open_size(self) -> int:
        """Bytes of the open transaction, taken or not; 0 between transactions and in a replay."""
        return 0 if self._open is None else self._open.size

    def has_mark(self, mark: str) -> bool:
        """Whether a mark waits in a whole transaction."""
        entries = self._entries if self._open is None else self._entries[: self._open.entry]
        detail = format_mark(mark)
        return any(entry.detail == detail for entry in entries)

    def feed(self, frames: Sequence[Frame], start: int = 0) -> int:
        """Take in frames from `start` on; return the index of the first that was left.

        It leaves frames only after the Commit of a spooled transaction (`spool_ended`), which must
        be taken first. Raises: ProtocolError, and what `Replay`, `complete` and `conceal` raise.
        """
        waiting = self._frames
        append, room = waiting.append, BLOCK_BYTES - self._waiting_size
        size = 0
        for index in range(start, len(frames)):
            frame = frames[index]
            length = len(frame)
            if length > HEADER_SIZE and frame[HEADER_SIZE] in ROW_KINDS and frame[0] == XLOG_DATA:
                size += length
                if size > room:
                    # A row of almost 1 GiB needs a block of its own.
                    self._count(size - length)
                    self._cut_block()
                    size, room = length, BLOCK_BYTES
                append(frame)
                continue
            if length and frame[0] == KEEPALIVE:
                continue
            if size:
                self._count(size)
                size, room = 0, room - size
            self._receive(frame)
            if self.spool_ended is not None:
                return index + 1
        self._count(size)
        if len(waiting) >= BLOCK_ROWS or self._waiting_size >= BLOCK_BYTES:
            self._cut_block()
        return len(frames)

    def _count(self, size: int) -> None:
        if not size:
            return
        if self._open is None:
            # Keep the rows of transactions: all of them are in runs.
            del self._frames[sum(self._runs.rows) :]
            raise UnexpectedMessage("between transactions", "row")
        self._waiting_size += size
        if not self._open.replayed:
            self._open.size += size
            self._size += size

    def _receive(self, frame: Frame) -> None:
        match parse_message(frame):
            case Begin() as begin:
                self._begin(begin)
            case Commit() as commit:
                self._commit(commit)
            case Announcement() as announcement:
                self._announce(announcement)
            case Truncate() as truncate:
                self._truncate(truncate)
            case LogicalMessage() as message:
                self._receive_message(message)
            case Origin() | TypeName() | StreamAbort():
                pass
            case never:
                assert_never(never)

    def _begin(self, begin: Begin) -> None:
        if self._open is not None:
            raise UnexpectedMessage("a transaction is open", "begin")
        if begin.commit_lsn < self._last_end:
            raise UnexpectedMessage(f"at {self._last_end}, past commit {begin.commit_lsn}", "begin")
        replayed = self._replay.has(begin)
        index = len(self._transactions.xid)
        if not replayed:
            self._transactions.add(
                commit_lsn=begin.commit_lsn,
                end_lsn=END_LSN_NOT_KNOWN,
                xid=begin.xid,
                committed_at_us=begin.committed_at_us,
            )
        row, entry = len(self._frames), len(self._entries)
        self._open = OpenTransaction(begin, index, replayed, len(self._blocks), row, entry, row)

    def _commit(self, commit: Commit) -> None:
        transaction = self._require_open("commit")
        if commit.commit_lsn != transaction.begin.commit_lsn:
            raise UnexpectedMessage(
                f"the transaction at {transaction.begin.commit_lsn} is open",
                f"commit at {commit.commit_lsn}",
            )
        self._end_run(transaction)
        self._last_end = commit.end_lsn
        self._open = None
        if transaction.replayed:
            if transaction.entries:
                self._replay.check(transaction.begin)
        elif transaction.entries:
            if transaction.spooled:
                self.spool_ended = commit.end_lsn
            else:
                self._transactions.end_lsn[-1] = commit.end_lsn
                self.patience = min(self.patience, transaction.patience)
        else:
            self._transactions.drop_last()

    def _announce(self, announcement: Announcement) -> None:
        transaction = self._require_open("relation")
        relation = self._complete(announcement, transaction.begin.xid)
        concealment = self._conceal(relation)
        if concealment is not None:
            relation = concealment.conceal_relation(relation)
        known = RelationFrom(len(self._frames), relation, concealment)
        self._known[relation.oid] = known
        self._announced.append(known)
        self._relations.append((relation, transaction.begin.commit_lsn))

    def _truncate(self, truncate: Truncate) -> None:
        transaction = self._require_open("truncate")
        if not self._known.keys() >= set(truncate.oids):
            raise UnexpectedMessage("its relation is not announced", "truncate")
        detail = json.dumps({"cascade": truncate.cascade})
        for oid in truncate.oids:
            relation = self._known[oid].relation
            self._add_entry(Operation.TRUNCATE, detail, relation)
            if not transaction.replayed:
                self._backfills.remember_truncate(str(relation.table), transaction.begin.xid)

    def _receive_message(self, message: LogicalMessage) -> None:
        if not message.transactional:
            return
        transaction = self._require_open("message")
        mark = read_mark(message)
        if mark is None:
            self._end_run(transaction)
            transaction.seq += 1
            self.skipped_messages += is_ours(message) and not transaction.replayed
        elif transaction.replayed or isinstance(mark, str):
            self._add_entry(Operation.MARK, describe_mark(mark))
        else:
            self._take_step(transaction, mark, describe_mark(mark))

    def _take_step(self, transaction: OpenTransaction, step: BackfillMark, detail: str) -> None:
        """Decode all rows before a step of a backfill, then add what the step brings."""
        self._cut_block()
        taken = self._backfills.take(step, detail, at_us=transaction.begin.committed_at_us)
        transaction.patience = min(transaction.patience, taken.patience)
        if taken.relation is not None:
            self._relations.append((taken.relation, transaction.begin.commit_lsn))
        is_sweep = taken.operation is Operation.SWEEP
        self._add_entry(taken.operation, taken.detail, taken.relation if is_sweep else None)
        if taken.rows is None or not taken.rows.num_rows:
            return
        self._size += taken.rows.nbytes
        transaction.size += taken.rows.nbytes
        for rows in taken.rows.to_batches():
            runs = Runs()
            runs.add(transaction.index, transaction.seq, rows.num_rows)
            self._blocks.append(Block(rows, runs))
            self._rows += rows.num_rows
            transaction.seq += rows.num_rows
            transaction.entries += rows.num_rows

    def _add_entry(
        self, operation: Operation, detail: str | None, relation: Relation | None = None
    ) -> None:
        transaction = self._require_open(str(operation))
        self._end_run(transaction)
        if not transaction.replayed:
            entry = Entry(
                transaction=transaction.index,
                seq=transaction.seq,
                operation=operation,
                table=None if relation is None else str(relation.table),
                relation_version=None if relation is None else relation.version,
                detail=detail,
            )
            self._entries.append(entry)
            self._size += entry.size
            transaction.size += entry.size
        transaction.seq += 1
        transaction.entries += 1

    def _require_open(self, kind: str) -> OpenTransaction:
        if self._open is None:
            raise UnexpectedMessage("between transactions", kind)
        return self._open

    def _end_run(self, transaction: OpenTransaction) -> None:
        """Close the run of rows that ends here; drop the rows of a replayed transaction."""
        rows = len(self._frames) - transaction.run_row
        if rows and transaction.replayed:
            del self._frames[transaction.run_row :]
            self._announced = [
                replace(entry, first_row=min(entry.first_row, transaction.run_row))
                for entry in self._announced
            ]
        elif rows:
            self._runs.add(transaction.index, transaction.seq, rows)
        transaction.seq += rows
        transaction.entries += rows
        transaction.run_row = len(self._frames)

    def _cut_block(self) -> None:
        """Decode the waiting frames into a block."""
        if self._open is not None:
            self._end_run(self._open)
            self._open.run_row = 0
        if self._frames:
            decoded = decode_rows(self._frames, self._announced)
            if not self._backfills.is_idle:
                versions = {known.relation.version: known.relation for known in self._announced}
                self._backfills.remember_rows(decoded, self._runs, self._transactions, versions)
            self._blocks.append(Block(decoded, self._runs))
            self._rows += decoded.num_rows
            self._count_growth(decoded.nbytes - self._waiting_size, decoded.num_rows)
            self._frames.clear()
            self._runs = Runs()
        self._waiting_size = 0
        self._announced = [replace(known, first_row=0) for known in self._known.values()]

    def _count_growth(self, growth: int, rows: int) -> None:
        """Count the bytes that decoding added: a NULL has one on the wire and four in a column."""
        if growth <= 0:
            return
        self._size += growth
        if self._open is not None and not self._open.replayed:
            own = self._runs.count_rows_of(self._open.index)
            self._open.size += growth * own // rows

    def take(self) -> Batch | None:
        """Take all whole transactions as a batch; None if none wait."""
        if not self.closed_transactions:
            return None
        self._cut_block()
        blocks, kept_blocks = self._blocks, list[Block]()
        entries, kept_entries = self._entries, list[Entry]()
        transactions, kept = self._transactions, self._transactions.begin_next()
        size, kept_size = self._size, 0
        if (opened := self._open) is not None:
            blocks, kept_blocks = split_blocks(blocks, opened.block, opened.row, opened.index)
            entries = self._entries[: opened.entry]
            kept_entries = [replace(e, transaction=0) for e in self._entries[opened.entry :]]
            transactions, kept = transactions.split_last()
            size, kept_size = size - opened.size, opened.size
            opened.index = opened.block = opened.row = opened.entry = 0
        batch = Batch(tuple(blocks), tuple(entries), transactions, tuple(self._relations), size)
        self._relations = []
        self._blocks, self._entries, self._transactions = kept_blocks, kept_entries, kept
        self._size = kept_size
        self.patience = 1.0
        self._rows = sum(block.decoded.num_rows for block in kept_blocks)
        return batch

    def take_spooled(self) -> Batch:
        """Take what has arrived since the last call of the only transaction, without its end LSN.

        From the first call on, the transaction is spooled: `feed` stops at its Commit, with its end
        LSN in `spool_ended`. One more call then takes the rest.
        """
        assert not self.closed_transactions or self.spool_ended is not None
        self._cut_block()
        batch = Batch(
            tuple(self._blocks),
            tuple(self._entries),
            self._transactions,
            tuple(self._relations),
            self._size,
        )
        self._blocks, self._entries, self._relations = [], [], []
        self._size = self._rows = 0
        if self._open is None:
            self._transactions = self._transactions.begin_next()
            self.spool_ended = None
        else:
            self._open.spooled = True
            self._open.block = self._open.row = self._open.entry = 0
        return batch
