"""Batches: decoded rows and other entries of whole transactions, in the log's columns.

Capture decodes blocks of some thousand rows while transactions are still open. So a batch keeps the
facts of a transaction (commit and end LSN, xid, commit time) once per transaction. A run of rows
names its transaction. All of it becomes columns when the batch is written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from cdc_core.layout import CHANGES_SCHEMA, DECODED_SCHEMA
from cdc_core.vocabulary import Lsn, Operation, Relation

# Arrays of numbers cost Python's garbage collector nothing. If each transaction has one row, there
# are as many numbers as rows.
Numbers: TypeAlias = "array[int]"
_TIME = pa.timestamp("us", tz="UTC")
# The copy of a row costs a microsecond, a slice of all columns some tens of microseconds.
_WORTH_A_SLICE = 100
# Bytes of an entry without its detail: as an object, and as a row of columns.
ENTRY_BYTES = 500


def _no_numbers() -> Numbers:
    return array("q")


@dataclass(slots=True)
class Runs:
    """Runs of consecutive rows, each of one transaction.

    A run has the index of its transaction in the batch, its first row's seq, and its row count.
    """

    transaction: Numbers = field(default_factory=_no_numbers)
    first_seq: Numbers = field(default_factory=_no_numbers)
    rows: Numbers = field(default_factory=_no_numbers)

    def add(self, transaction: int, first_seq: int, rows: int) -> None:
        """Add a run."""
        self.transaction.append(transaction)
        self.first_seq.append(first_seq)
        self.rows.append(rows)

    def split(self, row: int) -> tuple[Runs, Runs]:
        """Split into the runs before `row`, and the rest; `row` must begin a run."""
        index = counted = 0
        while counted < row:
            counted += self.rows[index]
            index += 1
        columns = (self.transaction, self.first_seq, self.rows)
        return Runs(*(kept[:index] for kept in columns)), Runs(*(kept[index:] for kept in columns))

    def count_rows_of(self, transaction: int) -> int:
        """The number of rows that a transaction has in these runs."""
        owners = zip(self.transaction, self.rows, strict=True)
        return sum(rows for owner, rows in owners if owner == transaction)

    def renumber(self, transaction: int) -> Runs:
        """The same runs, all of the given transaction."""
        return replace(self, transaction=array("q", [transaction]) * len(self.rows))


@dataclass(frozen=True, slots=True)
class Block:
    """Decoded rows in order of position, and the runs that they form."""

    decoded: pa.RecordBatch
    runs: Runs

    def split(self, row: int) -> tuple[Block, Block]:
        """Split into the rows before `row`, and the rest; `row` must begin a run."""
        before, after = self.runs.split(row)
        return Block(self.decoded.slice(0, row), before), Block(self.decoded.slice(row), after)


@dataclass(frozen=True, slots=True)
class Entry:
    """A change that is not a row: a mark, a truncate or a sweep."""

    transaction: int
    seq: int
    operation: Operation
    table: str | None = None
    relation_version: int | None = None
    detail: str | None = None

    @property
    def size(self) -> int:
        """About how many bytes of memory the entry takes until it is written."""
        return ENTRY_BYTES + len(self.detail or "")


@dataclass(slots=True)
class Transactions:
    """The facts of each transaction, by its index.

    `previous_log_time_us` is the newest log time before the first of them.
    """

    commit_lsn: Numbers = field(default_factory=_no_numbers)
    end_lsn: Numbers = field(default_factory=_no_numbers)
    xid: Numbers = field(default_factory=_no_numbers)
    committed_at_us: Numbers = field(default_factory=_no_numbers)
    previous_log_time_us: int = field(default=0, kw_only=True)

    @property
    def newest_log_time_us(self) -> int:
        """The log time of the newest transaction; without one, the log time before."""
        return max(self.previous_log_time_us, max(self.committed_at_us, default=0))

    def add(self, *, commit_lsn: int, end_lsn: int, xid: int, committed_at_us: int) -> int:
        """Add a transaction; return its index."""
        self.commit_lsn.append(commit_lsn)
        self.end_lsn.append(end_lsn)
        self.xid.append(xid)
        self.committed_at_us.append(committed_at_us)
        return len(self.xid) - 1

    def split_last(self) -> tuple[Transactions, Transactions]:
        """Split into all transactions but the newest, and the newest alone."""
        facts = self._list_facts()
        before = Transactions(
            *(values[:-1] for values in facts), previous_log_time_us=self.previous_log_time_us
        )
        last = Transactions(
            *(values[-1:] for values in facts), previous_log_time_us=before.newest_log_time_us
        )
        return before, last

    def begin_next(self) -> Transactions:
        """Return an empty set that continues from the newest log time."""
        return Transactions(previous_log_time_us=self.newest_log_time_us)

    def drop_last(self) -> None:
        """Remove the newest transaction."""
        for values in self._list_facts():
            values.pop()

    def list_log_times_us(self) -> np.ndarray:
        """The log time of each transaction: the greatest commit time of it and of all before it.

        A commit time can be earlier than the one before it: two sessions may commit at once, or
        somebody may set the clock back.
        """
        committed = np.array(self.committed_at_us, np.int64)
        return np.maximum(np.maximum.accumulate(committed), self.previous_log_time_us)

    def _list_facts(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        return self.commit_lsn, self.end_lsn, self.xid, self.committed_at_us


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries of whole transactions, or of a part of one whose end LSN is not known yet.

    `relations` are those that the stream announced or a backfill brought since the last batch, each
    with the commit LSN that first needs it. `size` is in bytes.
    """

    blocks: tuple[Block, ...]
    entries: tuple[Entry, ...]
    transactions: Transactions
    relations: tuple[tuple[Relation, Lsn], ...]
    size: int

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(block.decoded.num_rows for block in self.blocks)

    @property
    def end_lsn(self) -> Lsn:
        """The first byte after its last transaction."""
        return Lsn(self.transactions.end_lsn[-1])

    @property
    def committed_at_us(self) -> int:
        """The commit time of its last transaction, by the server's clock."""
        return self.transactions.committed_at_us[-1]

    def pieces(self, rows: int) -> Iterator[Batch]:
        """Yield the batch in pieces of about `rows` rows; the first piece has all entries."""
        entries, taken = self.entries, 0
        while taken < len(self.blocks) or entries:
            start, counted = taken, 0
            while taken < len(self.blocks) and counted < rows:
                counted += self.blocks[taken].decoded.num_rows
                taken += 1
            yield replace(self, blocks=self.blocks[start:taken], entries=entries)
            entries = ()

    def to_table(self, epoch: int) -> pa.Table:
        """All rows and entries in the columns of the log, sorted by table, then by position."""
        decoded = [block.decoded for block in self.blocks]
        transaction, seq = _expand([block.runs for block in self.blocks])
        if self.entries:
            decoded.append(_decode_entries(self.entries))
            transaction = np.append(transaction, [entry.transaction for entry in self.entries])
            seq = np.append(seq, [entry.seq for entry in self.entries])
        facts = self.transactions
        committed = np.array(facts.committed_at_us, np.int64)[transaction]
        log_time = facts.list_log_times_us()[transaction]
        columns = {
            "epoch": pa.array(np.full(len(seq), epoch, np.int32)),
            "commit_lsn": pa.array(np.array(facts.commit_lsn, np.int64)[transaction]),
            "seq": pa.array(seq),
            "end_lsn": pa.array(np.array(facts.end_lsn, np.int64)[transaction]),
            "xid": pa.array(np.array(facts.xid, np.int64)[transaction]),
            "committed_at": pa.array(committed).cast(_TIME),
            "log_time": pa.array(log_time).cast(_TIME),
        }
        rows = pa.Table.from_batches(decoded, schema=DECODED_SCHEMA)
        for name in DECODED_SCHEMA.names:
            columns[name] = rows.column(name)
        table = pa.Table.from_pydict(columns, schema=CHANGES_SCHEMA)
        return _put_in_order(table, _find_order(table.column("table"), transaction, seq))


def split_blocks(
    blocks: list[Block], block: int, row: int, index: int
) -> tuple[list[Block], list[Block]]:
    """Split the blocks of transaction `index` from those before; it begins at `row` of `block`."""
    before, after = blocks[:block], blocks[block:]
    if after and row:
        head, tail = after[0].split(row)
        before = [*before, head]
        after = [tail, *after[1:]]
    own = [replace(kept, runs=kept.runs.renumber(0)) for kept in after if kept.decoded.num_rows]
    assert all(owner == index for kept in after for owner in kept.runs.transaction)
    return before, own


def _expand(blocks: Sequence[Runs]) -> tuple[np.ndarray, np.ndarray]:
    """The transaction index and the seq of each row."""
    counts = _join([runs.rows for runs in blocks])
    transaction = np.repeat(_join([runs.transaction for runs in blocks]), counts)
    starts = np.cumsum(counts) - counts
    first = _join([runs.first_seq for runs in blocks]) - starts
    return transaction, np.arange(len(transaction), dtype=np.int64) + np.repeat(first, counts)


def _join(columns: Sequence[Numbers]) -> np.ndarray:
    """Join arrays into one; the result is empty if `columns` is empty."""
    return np.concatenate([np.array(column, np.int64) for column in (array("q"), *columns)])


def _decode_entries(entries: Sequence[Entry]) -> pa.RecordBatch:
    rows = [
        {
            "table": entry.table,
            "relation_version": entry.relation_version,
            "op": str(entry.operation),
            "detail": entry.detail,
        }
        for entry in entries
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DECODED_SCHEMA)


def _find_order(tables: pa.ChunkedArray, transaction: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """The indexes of the rows, in the order of table, transaction, seq."""
    codes = tables.combine_chunks().dictionary_encode()
    if len(codes.dictionary) <= 1 and codes.null_count in (0, len(codes)):
        table = np.zeros(len(seq), np.int64)
    else:
        table = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.lexsort((seq, transaction, table))


def _put_in_order(rows: pa.Table, order: np.ndarray) -> pa.Table:
    """Put rows in an order; do not copy those in long runs of that order, such as a chunk's."""
    starts = np.append(np.zeros(1, np.int64), np.flatnonzero(np.diff(order) != 1) + 1)
    if len(starts) * _WORTH_A_SLICE > len(order):
        return rows.take(order)
    lengths = np.diff(np.append(starts, len(order)))
    return pa.concat_tables(
        rows.slice(first, length) for first, length in zip(order[starts], lengths, strict=True)
    )
