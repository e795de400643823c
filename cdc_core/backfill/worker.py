"""A backfill: one table read chunk by chunk while the stream goes on, until the log has all of it.

What it says to capture goes through the source's WAL, what it brings lies in the spool, and what
became of it is read from the log. So capture may be any process that shares them. Killed, it leaves
nothing in the log that is not right: a chunk without a watermark is nowhere.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_core.backfill.openings import Openings
from cdc_core.backfill.plan import Plan, Range
from cdc_core.backfill.steps import Begin, End, Step, Sweep, Watermark, format_step
from cdc_core.backfill.visibility import Snapshot
from cdc_core.crash_points import reach
from cdc_core.errors import Retry, WalgateError
from cdc_core.protocol.concealment import Concealment, Treatment
from cdc_core.settings import Settings
from cdc_core.source import marks
from cdc_core.source.chunks import ChunkReader, OpenRead, join_rows
from cdc_core.source.connection import open_connection
from cdc_core.staging.chunks import Chunk, ChunkFolder, Sweeping
from cdc_core.staging.tail import Staged, Tail
from cdc_core.vocabulary import Position, Relation, TableName

# Chunks that capture has not taken yet lie in the spool.
_WAITING_BYTES = 256 << 20
_SIGN_OF_LIFE_S = 60.0
_LOOK_S = 0.05
_SAY_AGAIN_S = 10.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

_logger = logging.getLogger("walgate.backfill")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a backfill has brought into the log; `stale` rows were changed while they were read."""

    backfill: str
    chunks: int = 0
    rows: int = 0
    stale: int = 0
    voids: int = 0


class _Stopped(Exception):
    """The backfill was told to stop before it was done."""


class Backfill:
    """One run over one table."""

    def __init__(
        self,
        settings: Settings,
        table: TableName,
        *,
        chunk_rows: int,
        parallel: int,
        conceal: Callable[[Relation], Concealment | None],
        stop: threading.Event,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """Nothing is asked of the source yet."""
        self.id = uuid.uuid4().hex
        self._settings = settings
        self._table = table
        self._chunk_rows = chunk_rows
        self._parallel = parallel
        self._conceal = conceal
        self._stop = stop
        self._on_progress = on_progress
        self._plan = Plan()
        self._planning = threading.Lock()
        self._openings = Openings()
        self._folder = ChunkFolder(settings.lake.spool)
        self._sizes: dict[tuple[int, int], int] = {}
        self._memory = ""
        self._begun: Position | None = None
        self._relation: Relation | None = None
        self._is_forgotten = False
        self._swept: str | None = None
        self._said_at = 0.0
        self.progress = Progress(self.id)

    def run(self) -> bool:
        """Bring the whole table into the log, then remove from it what the source has no more.

        Give whether it was done before it was told to stop. Raises: WalgateError.
        """
        source = self._settings.source
        with (
            closing(open_connection(source, application_name="walgate steps")) as connection,
            self._folder.claim(self.id),
        ):
            self._connection = connection
            self._tail = Tail(self._settings.lake.root)
            try:
                start = self._begin()
                self._read_ranges()
                self._sweep(start)
            except _Stopped:
                return False
            finally:
                with suppress(WalgateError):
                    self._emit(End(self.id, self._memory))
        return True

    def _begin(self) -> Position:
        """Have capture remember from here on; wait until all before can be seen."""
        memory = uuid.uuid4().hex
        self._begun = None
        self._begin_memory = memory
        self._emit(Begin(self.id, memory, str(self._table)))
        before = Snapshot.parse(marks.read_snapshot(self._connection))
        self._await(lambda: self._begun is not None, "capture to take up the backfill")
        open_before = np.array(sorted(before.running), np.int64)
        self._await(
            lambda: bool(
                Snapshot.parse(marks.read_snapshot(self._connection)).sees(open_before).all()
            ),
            f"transactions that were open before it: {', '.join(map(str, open_before[:5]))}",
        )
        self._memory, self._is_forgotten = memory, False
        reach("after_backfill_begun")
        assert self._begun is not None
        return self._begun

    def _read_ranges(self) -> None:
        """Read until every range is in the log."""
        running: dict[Future[None], int] = {}
        slots = list(range(self._parallel))
        readers: dict[int, ChunkReader] = {}
        pause = _FIRST_PAUSE_S
        with ThreadPoolExecutor(self._parallel, "walgate-chunk") as pool:
            try:
                while not self._plan.is_done:
                    self._require_wanted()
                    if self._is_forgotten and not running:
                        self._begin()
                    while self._may_read(len(running)):
                        slot = slots.pop()
                        running[pool.submit(self._read_chunk, slot, readers)] = slot
                    done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                    for future in done:
                        slots.append(running.pop(future))
                        pause = self._require_read(future, pause)
                    self._take_news()
                    self._show_life()
            finally:
                wait(running)
                for reader in readers.values():
                    reader.close()

    def _may_read(self, running: int) -> bool:
        waiting = sum(self._sizes.values())
        with self._planning:
            has_more = self._plan.has_more
        return (
            has_more
            and not self._is_forgotten
            and running < self._parallel
            and waiting < _WAITING_BYTES
        )

    def _require_read(self, future: Future[None], pause: float) -> float:
        """Raise what ended a read, unless it may go well in a while."""
        error = future.exception()
        if error is None:
            return _FIRST_PAUSE_S
        if not isinstance(error, WalgateError) or error.retry is Retry.AFTER_FIX:
            raise error
        _logger.warning("chunk not read", extra={"fields": {"reason": error.message}})
        self._stop.wait(pause)
        return min(2 * pause, _LONGEST_PAUSE_S)

    def _read_chunk(self, slot: int, readers: dict[int, ChunkReader]) -> None:
        """Read one range under the lock, and write its watermark before the lock is given up."""
        # Which memory judges the rows is settled before they are seen.
        memory = self._memory
        reader = readers.pop(slot, None) or ChunkReader(self._settings.source, self._table)
        chosen: Range | None = None
        try:
            with reader.lock():
                opened = self._openings.take(slot, lambda: _look(reader))
                chosen = self._choose_range(opened)
                if chosen is not None:
                    self._store(chosen, opened)
                    reach("after_chunk_stored")
                    self._emit_watermark(chosen, memory, opened)
                    reach("after_watermark")
        except BaseException:
            reader.close()
            if chosen is not None:
                with self._planning:
                    self._plan.record_void(chosen.number, chosen.attempt)
            raise
        finally:
            self._openings.release(slot)
        readers[slot] = reader

    def _emit_watermark(self, chosen: Range, memory: str, opened: OpenRead) -> None:
        snapshot, oldest = Snapshot.parse(opened.snapshot), self._openings.find_oldest()
        number, attempt = chosen.number, chosen.attempt
        self._emit(Watermark(self.id, memory, number, attempt, snapshot, oldest))

    def _choose_range(self, opened: OpenRead) -> Range | None:
        with self._planning:
            if (again := self._plan.take_again()) is not None:
                return again
            if self._plan.rest is None:
                return None
            low, high = self._plan.rest
            return self._plan.cut(opened.find_boundary(low, high, self._chunk_rows))

    def _store(self, chosen: Range, opened: OpenRead) -> None:
        """Read a range's rows into the spool, with what is concealed left out or hashed."""
        relation, concealment = opened.relation, self._conceal(opened.relation)
        treatments = concealment.treatments if concealment else ()
        names = [column.name for column in relation.columns]
        kept = [n for i, n in enumerate(names) if not treatments or treatments[i] is not _DROP]
        columns = opened.read_rows(kept, low=chosen.low, high=chosen.high)
        reach("after_chunk_read")
        if concealment is not None:
            hashed = {n for n, how in zip(names, treatments, strict=True) if how is _HASH}
            columns = [
                _hash(concealment, column) if name in hashed else column
                for name, column in zip(kept, columns, strict=True)
            ]
            relation = concealment.conceal_relation(relation)
        self._relation = relation
        chunk = Chunk(relation, join_rows(columns), chosen.low, chosen.high)
        self._sizes[chosen.number, chosen.attempt] = self._folder.store(
            chunk, backfill=self.id, number=chosen.number, attempt=chosen.attempt
        )

    def _sweep(self, start: Position) -> None:
        """Have what was not brought, and not changed since the start, removed."""
        assert self._relation is not None
        while self._swept != "staged":
            self._swept = None
            # A capture that began meanwhile has emptied the spool.
            self._folder.store_sweep(Sweeping(self._relation, start), backfill=self.id)
            reach("before_sweep")
            self._emit(Sweep(self.id))
            reach("after_sweep")
            self._await(lambda: self._swept is not None, "capture to stage the sweep")

    def _await(self, is_reached: Callable[[], bool], what: str) -> None:
        """Wait for something, saying now and then what is waited for."""
        began = said = time.monotonic()
        while not is_reached():
            self._require_wanted()
            self._take_news()
            self._show_life()
            now = time.monotonic()
            if now - said >= _SAY_AGAIN_S:
                said = now
                fields = {"for": what, "seconds": round(now - began)}
                _logger.warning("backfill waits", extra={"fields": fields})
            self._stop.wait(_LOOK_S)

    def _take_news(self) -> None:
        """Note what has become of our steps in the log."""
        for staged in self._tail.read():
            said = _parse(staged)
            if said.get("backfill") != self.id:
                continue
            if said["step"] == "begin" and said["memory"] == self._begin_memory:
                self._begun = self._begun or staged.position
            elif said["step"] == "sweep":
                self._swept = str(said["state"])
            elif said["step"] == "watermark":
                self._take_result(said)

    def _take_result(self, said: dict[str, object]) -> None:
        number, attempt = said["chunk"], said["attempt"]
        assert isinstance(number, int)
        assert isinstance(attempt, int)
        self._sizes.pop((number, attempt), None)
        if said["state"] == "void":
            self._is_forgotten = self._is_forgotten or said["memory"] == self._memory
            with self._planning:
                self._plan.record_void(number, attempt)
            self.progress = _add(self.progress, voids=1)
            return
        with self._planning:
            taken = self._plan.record_staged(number, attempt)
        if taken is not None:
            rows, stale = said["rows"], said["stale"]
            assert isinstance(rows, int)
            assert isinstance(stale, int)
            self.progress = _add(self.progress, chunks=1, rows=rows, stale=stale)
            self._on_progress(self.progress)

    def _show_life(self) -> None:
        """Let capture know that its memory is needed."""
        if self._memory and time.monotonic() - self._said_at >= _SIGN_OF_LIFE_S:
            self._emit(Begin(self.id, self._memory, str(self._table)))

    def _emit(self, step: Step) -> None:
        marks.emit_mark(self._connection, format_step(step))
        self._said_at = time.monotonic()

    def _require_wanted(self) -> None:
        if self._stop.is_set():
            raise _Stopped


_DROP, _HASH = Treatment.DROP, Treatment.HASH


def _look(reader: ChunkReader) -> tuple[Snapshot, OpenRead]:
    opened = reader.look()
    return Snapshot.parse(opened.snapshot), opened


def _hash(concealment: Concealment, column: pa.StringArray) -> pa.StringArray:
    texts = (None if text is None else text.encode() for text in column.to_pylist())
    hashes = [None if text is None else concealment.hash_text(text).decode() for text in texts]
    return pa.array(hashes, pa.string())


def _parse(staged: Staged) -> dict[str, object]:
    said = json.loads(staged.detail)
    return said if isinstance(said, dict) else {}


def _add(
    progress: Progress, *, chunks: int = 0, rows: int = 0, stale: int = 0, voids: int = 0
) -> Progress:
    return Progress(
        progress.backfill,
        progress.chunks + chunks,
        progress.rows + rows,
        progress.stale + stale,
        progress.voids + voids,
    )
