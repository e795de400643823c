"""Reads ranges of a table: each under a lock and into the spool, then writes its watermark.

The transaction that holds the lock also writes the watermark. So no ALTER and no TRUNCATE can come
between the rows and the watermark, and a reader that lost its lock writes no watermark. Several
threads read at a time, each on its own connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.backfill.chunk_size import AIM_S, ChunkSize
from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.marks import Watermark, format_backfill_mark
from cdc_core.backfill.open_snapshots import OpenSnapshots
from cdc_core.backfill.plan import Plan, Range
from cdc_core.backfill.request import BackfillRequest, find_hidden, open_reader
from cdc_core.backfill.restart_reasons import HIDDEN, OTHER_KEY, KeyChanged, Rewritten
from cdc_core.backfill.visibility import Snapshot
from cdc_core.crash_points import reach
from cdc_core.errors import ConfigurationError
from cdc_core.protocol.concealment import Concealment, Treatment
from cdc_core.source.chunks import ChunkReader, OpenRead, join_rows
from cdc_core.spooled import Chunk
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.vocabulary import Relation

# The worker and capture each hold a whole chunk in memory. One row may be larger.
MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class SpooledRead:
    """The bytes that a read left in the spool, and the seconds that it took."""

    size: int
    seconds: float


class Reading:
    """The reads of one plan: its connections, the open ranges, and the chunks in the spool."""

    def __init__(
        self,
        wanted: BackfillRequest,
        plan: Plan,
        folder: ChunkFolder,
        *,
        backfill: str,
        size: ChunkSize,
        sharing: BackfillLimits,
    ) -> None:
        """Prepare to read; `read_range` opens the connections."""
        self._wanted = wanted
        self._plan = plan
        self._folder = folder
        self._backfill = backfill
        self._size = size
        self._sharing = sharing
        self._lock = threading.Lock()
        self._openings = OpenSnapshots()
        self._idle: list[ChunkReader] = []
        self._busy: set[ChunkReader] = set()
        self._left: dict[tuple[int, int], SpooledRead] = {}
        self._seen: Relation | None = None

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

    @property
    def has_waiting(self) -> bool:
        """Whether the spool has a chunk that the log has not taken yet."""
        with self._lock:
            return bool(self._left)

    def read_range(self, memory: str, number: int) -> None:
        """Read a range, if the plan has one, into the spool, and write its watermark.

        `memory` names the changed keys for this chunk; `number` is the number of this read.
        Raises: SourceError, StagingError, ConfigurationError; the range must then be read again.
        KeyChanged, Rewritten; the whole backfill must then begin again.
        """
        began = time.monotonic()
        reader = self._take_reader()
        chosen: Range | None = None
        try:
            with reader.lock():
                opened = self._openings.take(number, lambda: _look(reader))
                chosen = self._choose_range(opened)
                if chosen is not None:
                    chosen = self._store(chosen, opened, memory, began)
                    reach("after_chunk_stored")
                    reader.emit(format_backfill_mark(self._make_watermark(chosen, opened, memory)))
            if chosen is not None:
                reach("after_watermark")
        except BaseException:
            reader.close()
            if chosen is not None:
                self.record_void(memory, chosen.number, chosen.attempt)
            raise
        finally:
            self._openings.release(number)
            with self._lock:
                self._busy.discard(reader)
        with self._lock:
            self._idle.append(reader)

    def require_values_kept(self, relation: Relation) -> None:
        """Check that no rewrite or rename came since the check before. Raises: Rewritten."""
        with self._lock:
            compared = relation.after(self._seen)
            if self._seen is not None and compared.rewritten != self._seen.rewritten:
                raise Rewritten
            self._seen = compared

    def record_staged(self, memory: str, number: int, attempt: int) -> SpooledRead | None:
        """Note that the log has a range; return what its read left. None if that was known."""
        left = self._discard(memory, number, attempt)
        with self._lock:
            taken = self._plan.record_staged(number, attempt)
            return None if taken is None else left

    def record_void(self, memory: str, number: int, attempt: int) -> None:
        """Note that a range must be read again."""
        self._discard(memory, number, attempt)
        with self._lock:
            self._plan.record_void(number, attempt)

    def void_unanswered(self, memory: str) -> None:
        """Note that all ranges read for `memory` that are not in the log must be read again.

        Call it when `memory` is no longer of use, and no read runs. A range may enter the log after
        all: by an answer of capture that this worker missed, or that is still to come. The log then
        has the range twice, as two reads at different times.
        """
        with self._lock:
            unanswered = self._plan.unanswered
        for one in unanswered:
            self.record_void(memory, one.number, one.attempt)

    def interrupt(self) -> None:
        """Interrupt the running reads; their ranges do not enter the log."""
        with self._lock:
            busy = list(self._busy)
        for reader in busy:
            reader.interrupt()

    def close(self) -> None:
        """Disconnect, and stop counting what waits in the spool. No read may run."""
        for reader in self._idle:
            reader.close()
        self._sharing.remove(sum(left.size for left in self._left.values()))

    def _discard(self, memory: str, number: int, attempt: int) -> SpooledRead | None:
        """Remove an attempt at a range from the spool; return what it left there."""
        self._folder.discard(backfill=self._backfill, memory=memory, number=number, attempt=attempt)
        with self._lock:
            left = self._left.pop((number, attempt), None)
        if left is not None:
            self._sharing.remove(left.size)
        return left

    def _take_reader(self) -> ChunkReader:
        with self._lock:
            reader = self._idle.pop() if self._idle else None
        if reader is None:
            reader = open_reader(self._wanted)
        with self._lock:
            self._busy.add(reader)
        return reader

    def _choose_range(self, opened: OpenRead) -> Range | None:
        if self._wanted.by not in {None, opened.by}:
            raise KeyChanged(OTHER_KEY)
        self.require_values_kept(opened.relation)
        with self._lock:
            if (again := self._plan.take_again()) is not None:
                return again
            if self._plan.rest is None:
                return None
            low, high = self._plan.rest
            return self._plan.cut(opened.find_boundary(low, high, self._choose_rows()))

    def _choose_rows(self) -> int:
        """The row count of the next chunk, at most what the rate limit allows in `AIM_S`."""
        rate = self._sharing.rows_per_second
        return self._size.rows if rate is None else min(self._size.rows, max(1, int(rate * AIM_S)))

    def _store(self, chosen: Range, opened: OpenRead, memory: str, began: float) -> Range:
        """Read a range's rows into the spool; if they have too many bytes, only the first rows."""
        relation, concealment = opened.relation, self._wanted.conceal(opened.relation)
        treatments = {} if concealment is None else _find_treatments(concealment, relation)
        # Do not read an excluded column: it may be unreadable.
        names = [
            column.name
            for column in relation.columns
            if treatments.get(column.name) is not Treatment.DROP
        ]
        if chosen.asked is not None:
            _require_plain_key(opened, concealment)
            values, is_whole = opened.read_keys(names, keys=chosen.asked), True
        else:
            values, is_whole = opened.read_rows(
                names, low=chosen.low, high=chosen.high, most_bytes=MAX_BYTES
            )
        if not is_whole:
            last = values[-1].as_py()
            with self._lock:
                chosen = self._plan.split(chosen, tuple(last[names.index(n)] for n in opened.order))
        if concealment is not None:
            values = _hash(concealment, values, [treatments[name] for name in names])
            relation = concealment.conceal_relation(relation)
        reach("after_chunk_read")
        low, high, by = chosen.low, chosen.high, opened.by
        if find_hidden(opened, concealment):
            # Leave the bounds out: they are keys in the clear, and the log keeps bounds.
            low, high, by = None, None, HIDDEN
        size = self._folder.store(
            Chunk(relation, values, low, high, chosen.asked, by),
            backfill=self._backfill,
            memory=memory,
            number=chosen.number,
            attempt=chosen.attempt,
        )
        seconds = time.monotonic() - began
        self._sharing.add(len(values), size)
        with self._lock:
            self._left[chosen.number, chosen.attempt] = SpooledRead(size, seconds)
            self._size.learn(len(values), size=values.nbytes, seconds=seconds)
        return chosen

    def _make_watermark(self, chosen: Range, opened: OpenRead, memory: str) -> Watermark:
        return Watermark(
            self._backfill,
            memory,
            chosen.number,
            chosen.attempt,
            Snapshot.parse(opened.snapshot),
            self._openings.find_oldest(),
            # Without the lock: another thread may hold it during a query. A late answer costs only
            # time.
            has_more=int(self._plan.has_more),
        )


def _require_plain_key(opened: OpenRead, concealment: Concealment | None) -> None:
    if hidden := find_hidden(opened, concealment):
        table = opened.relation.table
        names = ", ".join(hidden)
        raise ConfigurationError(
            [f"cannot read single rows of {table}: the lake has only hashes of {names}"],
            fix=f"backfill the whole table: `walgate backfill '{table}'`",
        )


def _look(reader: ChunkReader) -> tuple[Snapshot, OpenRead]:
    opened = reader.look()
    return Snapshot.parse(opened.snapshot), opened


def _find_treatments(concealment: Concealment, relation: Relation) -> dict[str, Treatment]:
    names = [column.name for column in relation.columns]
    return dict(zip(names, concealment.treatments, strict=True))


def _hash(
    concealment: Concealment, rows: pa.ChunkedArray, treatments: Sequence[Treatment]
) -> pa.ChunkedArray:
    """Replace the texts of the columns to hash by their hashes."""
    if Treatment.HASH not in treatments:
        return rows
    return pa.chunked_array(
        [_hash_piece(concealment, piece, treatments) for piece in rows.chunks], rows.type
    )


def _hash_piece(
    concealment: Concealment, rows: pa.ListArray, treatments: Sequence[Treatment]
) -> pa.ListArray:
    columns = [pc.list_element(rows, index) for index in range(len(treatments))]
    for index, treatment in enumerate(treatments):
        if treatment is Treatment.HASH:
            texts = columns[index].to_pylist()
            hashes = [t if t is None else concealment.hash_text(t.encode()).decode() for t in texts]
            columns[index] = pa.array(hashes, pa.string())
    return join_rows(columns)
