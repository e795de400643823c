"""Reading the ranges of a backfill: each under a lock, into the spool, then its watermark.

The watermark is written while the lock is held, so that no ALTER and no TRUNCATE can come between
the rows and it. Several threads read at a time, each on a connection of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdc_core.backfill.openings import Openings
from cdc_core.backfill.plan import Plan, Range
from cdc_core.backfill.steps import Step, Watermark
from cdc_core.backfill.visibility import Snapshot
from cdc_core.crash_points import reach
from cdc_core.errors import ConfigurationError
from cdc_core.protocol.concealment import Conceal, Concealment, Treatment
from cdc_core.settings import SourceSettings
from cdc_core.source.chunks import ChunkReader, OpenRead, join_rows
from cdc_core.spooled import Chunk
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.vocabulary import Relation, TableName


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be read: a table by its key, so many rows at once, with columns concealed."""

    source: SourceSettings
    table: TableName
    chunk_rows: int
    conceal: Conceal


@dataclass(frozen=True, slots=True)
class Left:
    """What a read left in the spool: bytes, and the seconds that reading took."""

    size: int
    seconds: float


class Reading:
    """The reads of one run: who reads what, by which connection, and what waits in the spool."""

    def __init__(
        self,
        wanted: Wanted,
        plan: Plan,
        folder: ChunkFolder,
        *,
        backfill: str,
        emit: Callable[[Step], None],
    ) -> None:
        """Nothing is read yet."""
        self._wanted = wanted
        self._plan = plan
        self._folder = folder
        self._backfill = backfill
        self._emit = emit
        self._lock = threading.Lock()
        self._openings = Openings()
        self._idle: list[ChunkReader] = []
        self._left: dict[tuple[int, int], Left] = {}

    @property
    def waiting_bytes(self) -> int:
        """Bytes in the spool that the log has not taken yet."""
        with self._lock:
            return sum(left.size for left in self._left.values())

    @property
    def has_more(self) -> bool:
        """Whether there is a range to read now."""
        with self._lock:
            return self._plan.has_more

    @property
    def is_done(self) -> bool:
        """Whether the log has every range."""
        with self._lock:
            return self._plan.is_done

    def read_range(self, memory: str, number: int) -> None:
        """Read one range, its rows to be judged by `memory`; `number` is that of this read.

        Raises: SourceError, StagingError, ConfigurationError; the range is then read again.
        """
        began = time.monotonic()
        reader = self._take_reader()
        chosen: Range | None = None
        try:
            with reader.lock():
                opened = self._openings.take(number, lambda: _look(reader))
                chosen = self._choose_range(opened)
                if chosen is not None:
                    self._store(chosen, opened, memory, began)
                    reach("after_chunk_stored")
                    self._emit_watermark(chosen, opened, memory)
                    reach("after_watermark")
        except BaseException:
            reader.close()
            if chosen is not None:
                self.record_void(chosen.number, chosen.attempt)
            raise
        finally:
            self._openings.release(number)
        with self._lock:
            self._idle.append(reader)

    @contextmanager
    def hold_relation(self) -> Iterator[Relation]:
        """Keep the table as it is while a block runs. Raises: SourceError, ConfigurationError."""
        reader = self._take_reader()
        try:
            with reader.lock():
                relation = reader.look().relation
                concealment = self._wanted.conceal(relation)
                yield concealment.conceal_relation(relation) if concealment else relation
        finally:
            reader.close()

    def record_staged(self, number: int, attempt: int) -> Left | None:
        """Note that the log has taken a range; None where that was known."""
        with self._lock:
            left = self._left.pop((number, attempt), None)
            taken = self._plan.record_staged(number, attempt)
            return None if taken is None else left

    def record_void(self, number: int, attempt: int) -> None:
        """Note that a range must be read again."""
        with self._lock:
            self._left.pop((number, attempt), None)
            self._plan.record_void(number, attempt)

    def close(self) -> None:
        """Disconnect; nothing is being read any more."""
        for reader in self._idle:
            reader.close()

    def _take_reader(self) -> ChunkReader:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return ChunkReader(self._wanted.source, self._wanted.table)

    def _choose_range(self, opened: OpenRead) -> Range | None:
        with self._lock:
            if (again := self._plan.take_again()) is not None:
                return again
            if self._plan.rest is None:
                return None
            low, high = self._plan.rest
            return self._plan.cut(opened.find_boundary(low, high, self._wanted.chunk_rows))

    def _store(self, chosen: Range, opened: OpenRead, memory: str, began: float) -> None:
        """Read a range's rows into the spool, what is concealed left out or hashed."""
        relation, concealment = opened.relation, self._wanted.conceal(opened.relation)
        if chosen.asked is not None:
            _require_plain_key(opened, concealment)
        names = [column.name for column in relation.columns]
        read_rows = (
            partial(opened.read_rows, low=chosen.low, high=chosen.high)
            if chosen.asked is None
            else partial(opened.read_keys, keys=chosen.asked)
        )
        if concealment is None:
            columns = read_rows(names)
        else:
            treatments = dict(zip(names, concealment.treatments, strict=True))
            kept = [name for name in names if treatments[name] is not Treatment.DROP]
            columns = [
                _hash(concealment, column) if treatments[name] is Treatment.HASH else column
                for name, column in zip(kept, read_rows(kept), strict=True)
            ]
            relation = concealment.conceal_relation(relation)
        reach("after_chunk_read")
        size = self._folder.store(
            Chunk(relation, join_rows(columns), chosen.low, chosen.high, chosen.asked),
            backfill=self._backfill,
            memory=memory,
            number=chosen.number,
            attempt=chosen.attempt,
        )
        with self._lock:
            left = Left(size, time.monotonic() - began)
            self._left[chosen.number, chosen.attempt] = left

    def _emit_watermark(self, chosen: Range, opened: OpenRead, memory: str) -> None:
        self._emit(
            Watermark(
                self._backfill,
                memory,
                chosen.number,
                chosen.attempt,
                Snapshot.parse(opened.snapshot),
                self._openings.find_oldest(),
            )
        )


def _require_plain_key(opened: OpenRead, concealment: Concealment | None) -> None:
    hidden = [
        opened.relation.columns[index].name
        for index in opened.relation.key
        if concealment is not None and concealment.treatments[index] is not Treatment.KEEP
    ]
    if hidden:
        table = opened.relation.table
        raise ConfigurationError(
            [f"the lake has hashes of {', '.join(hidden)}, by which rows of {table} are known"],
            fix=f"bring all of the table: `walgate backfill '{table}'`",
        )


def _look(reader: ChunkReader) -> tuple[Snapshot, OpenRead]:
    opened = reader.look()
    return Snapshot.parse(opened.snapshot), opened


def _hash(concealment: Concealment, column: pa.StringArray) -> pa.StringArray:
    texts = column.to_pylist()
    hashes = [None if t is None else concealment.hash_text(t.encode()).decode() for t in texts]
    return pa.array(hashes, pa.string())
