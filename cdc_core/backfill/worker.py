"""A backfill: one table read range by range while the stream goes on, until the log has all of it.

What it says to capture goes through the source's WAL, what it brings lies in the spool, and what
became of it is read from the log. So capture may be any process that shares them. Killed, it leaves
nothing in the log that is not right, for a chunk without a watermark is nowhere; run again, it goes
on with what the log does not have yet.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress

import numpy as np

from cdc_core.backfill.plan import Plan, Range
from cdc_core.backfill.reading import Reading, Wanted
from cdc_core.backfill.results import Progress, read_said, read_staged_chunk
from cdc_core.backfill.steps import Begin, End, Step, Sweep, format_step
from cdc_core.backfill.visibility import Snapshot
from cdc_core.crash_points import reach
from cdc_core.errors import Retry, WalgateError
from cdc_core.settings import LakeSettings
from cdc_core.source.steps import StepConnection
from cdc_core.spooled import Key, Sweeping
from cdc_core.staging.backfills import BackfillLedger, BackfillState, Begun, StagedChunk
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.tail import Tail, read_marks
from cdc_core.vocabulary import Lsn, Position

# Chunks that capture has not taken yet lie in the spool.
_WAITING_BYTES = 256 << 20
# One statement names them.
_KEYS_AT_ONCE = 1000
_SIGN_OF_LIFE_S = 60.0
_LOOK_S = 0.05
_SAY_AGAIN_S = 10.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

_logger = logging.getLogger("walgate.backfill")


class _Stopped(Exception):
    """The backfill was told to stop before it was done."""


class Backfill:
    """One run over one table."""

    def __init__(
        self,
        lake: LakeSettings,
        wanted: Wanted,
        *,
        parallel: int,
        stop: threading.Event,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """Nothing is asked of the source yet."""
        self._lake = lake
        self._wanted = wanted
        self._parallel = parallel
        self._stop = stop
        self._on_progress = on_progress
        self._folder = ChunkFolder(lake.spool)
        self._ledger = BackfillLedger(lake.root)
        self._tail = Tail(lake.root)
        self._steps = StepConnection(wanted.source)
        self._memory = ""
        self._remembered_from: Position | None = None
        self._is_forgotten = False
        self._swept: str | None = None
        self._swept_lsn: Lsn | None = None
        self._said_at = 0.0
        self._begun: Begun | None = None
        self._reading: Reading | None = None
        self.progress = Progress("")

    def run(self) -> bool:
        """Bring the whole table into the log, then remove from it what the source has no more.

        Give whether it was done before it was told to stop. Raises: WalgateError.
        """
        unfinished = self._ledger.find_unfinished(self._wanted.table)
        try:
            if unfinished is not None and self._run_as(unfinished.id, unfinished):
                return True
            # What was unfinished is of an epoch that is over.
            return self._run_as(uuid.uuid4().hex, None)
        except _Stopped:
            return False
        finally:
            self._steps.close()

    def reread(self, keys: Sequence[Key]) -> bool:
        """Bring into the log what some keys have now: their rows, or that they have none.

        Give whether it was done before it was told to stop. Raises: WalgateError.
        """
        name = uuid.uuid4().hex
        self.progress = Progress(name)
        plan = Plan.of_keys(keys, at_once=_KEYS_AT_ONCE)
        reading = Reading(self._wanted, plan, self._folder, backfill=name, emit=self._emit)
        self._reading = reading
        try:
            with self._folder.claim(name):
                try:
                    self._begin()
                    self._read_ranges(reading)
                finally:
                    with suppress(WalgateError):
                        self._emit(End(name, self._memory))
        except _Stopped:
            return False
        finally:
            reading.close()
            self._steps.close()
        return True

    def _run_as(self, name: str, unfinished: Begun | None) -> bool:
        """Run under an id; whether what was unfinished could be gone on with. Raises: _Stopped."""
        self.progress = Progress(name)
        with self._folder.claim(name):
            try:
                start = self._begin()
                if unfinished is not None and unfinished.start.epoch != start.epoch:
                    return False
                begun = unfinished or Begun(name, self._wanted.table, start)
                if unfinished is None:
                    rows, _ = self._steps.estimate_size(self._wanted.table)
                    self._ledger.record_begun(begun, rows)
                self._finish(begun, Plan(staged=self._find_staged(begun)))
            finally:
                with suppress(WalgateError):
                    self._emit(End(name, self._memory))
        return True

    def _finish(self, begun: Begun, plan: Plan) -> None:
        """Read what is left, and sweep."""
        wanted, folder = self._wanted, self._folder
        reading = Reading(wanted, plan, folder, backfill=begun.id, emit=self._emit)
        self._begun, self._reading = begun, reading
        try:
            self._read_ranges(reading)
            self._sweep(reading, begun)
        except _Stopped:
            self._ledger.record_state(begun, BackfillState.STOPPED)
            raise
        finally:
            reading.close()
        self._ledger.record_state(begun, BackfillState.DONE, swept=self._swept_lsn)

    def _find_staged(self, begun: Begun) -> list[Range]:
        """The ranges that the log has already."""
        chunks = [
            read_staged_chunk(said, mark)
            for mark in read_marks(self._lake.root, begun.start)
            if (said := read_said(mark, begun.id)) and said.get("state") == "staged"
        ]
        for chunk in chunks:
            self.progress = self.progress.add(chunk)
        return [Range(chunk.number, chunk.low, chunk.high) for chunk in chunks]

    def _begin(self) -> Position:
        """Have capture remember from here on; wait until all that came before can be seen."""
        self._memory, self._remembered_from = uuid.uuid4().hex, None
        self._show_life()
        snapshot = Snapshot.parse(self._steps.read_snapshot())
        self._await(lambda: self._remembered_from is not None, "capture to take up the backfill")
        before = np.array(sorted(snapshot.running), np.int64)

        def are_seen() -> bool:
            now = Snapshot.parse(self._steps.read_snapshot())
            return bool(now.sees(before).all())

        names = ", ".join(str(xid) for xid in before[:5])
        self._await(are_seen, f"transactions {names} to end, which were open before it")
        self._is_forgotten = False
        reach("after_backfill_begun")
        assert self._remembered_from is not None
        return self._remembered_from

    def _read_ranges(self, reading: Reading) -> None:
        """Read until the log has every range."""
        running: set[Future[None]] = set()
        pause, reads = _FIRST_PAUSE_S, 0
        with ThreadPoolExecutor(self._parallel, "walgate-chunk") as pool:
            while not reading.is_done:
                self._require_wanted()
                while self._may_read(reading, len(running)):
                    reads += 1
                    running.add(pool.submit(reading.read_range, self._memory, reads))
                done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                try:
                    for read in done:
                        read.result()
                        pause = _FIRST_PAUSE_S
                    self._take_news()
                    self._show_life_again()
                    if self._is_forgotten and not running:
                        self._begin()
                except WalgateError as error:
                    pause = self._pause_after(error, pause)

    def _may_read(self, reading: Reading, running: int) -> bool:
        if self._is_forgotten or running >= self._parallel or not reading.has_more:
            return False
        return reading.waiting_bytes < _WAITING_BYTES

    def _pause_after(self, error: WalgateError, pause: float) -> float:
        """Wait before something is tried again; the pause after the next failure.

        Raises: the error, where it needs a person.
        """
        if error.retry is Retry.AFTER_FIX:
            raise error
        fields = {"reason": error.message, "retry_s": pause}
        _logger.warning("backfill interrupted", extra={"fields": fields})
        self._stop.wait(pause)
        return min(2 * pause, _LONGEST_PAUSE_S)

    def _sweep(self, reading: Reading, begun: Begun) -> None:
        """Have removed what was not brought, and not changed since the start."""
        pause = _FIRST_PAUSE_S
        while self._swept != "staged":
            self._require_wanted()
            self._swept = None
            try:
                with reading.hold_relation() as relation:
                    # A capture that has begun meanwhile has emptied the spool.
                    self._folder.store_sweep(Sweeping(relation, begun.start), backfill=begun.id)
                    reach("before_sweep")
                    self._emit(Sweep(begun.id))
                reach("after_sweep")
                self._await(lambda: self._swept is not None, "capture to stage the sweep")
            except WalgateError as error:
                pause = self._pause_after(error, pause)

    def _await(self, is_reached: Callable[[], bool], what: str) -> None:
        """Wait for something, saying now and then what is waited for."""
        began = said = time.monotonic()
        while not is_reached():
            self._require_wanted()
            self._take_news()
            self._show_life_again()
            now = time.monotonic()
            if now - said >= _SAY_AGAIN_S:
                said = now
                fields = {"for": what, "seconds": round(now - began)}
                _logger.warning("backfill waits", extra={"fields": fields})
            self._stop.wait(_LOOK_S)

    def _take_news(self) -> None:
        """Note what the log says has become of our steps."""
        chunks: list[StagedChunk] = []
        for staged in self._tail.read():
            said = read_said(staged, self.progress.backfill)
            if said is None:
                continue
            if said["step"] == "begin" and said["memory"] == self._memory:
                self._remembered_from = self._remembered_from or staged.position
            elif said["step"] == "sweep":
                self._swept, self._swept_lsn = said["state"], staged.end_lsn
            elif said["step"] == "watermark" and self._reading is not None:
                number, attempt = said["chunk"], said["attempt"]
                if said["state"] == "void":
                    self._is_forgotten |= said["memory"] == self._memory
                    self._reading.record_void(number, attempt)
                elif left := self._reading.record_staged(number, attempt):
                    size, seconds = left.size, left.seconds
                    chunks.append(read_staged_chunk(said, staged, size=size, seconds=seconds))
        for chunk in chunks:
            self.progress = self.progress.add(chunk)
            self._on_progress(self.progress)
        if chunks and self._begun is not None:
            self._ledger.record_chunks(self._begun, chunks)

    def _show_life_again(self) -> None:
        if time.monotonic() - self._said_at >= _SIGN_OF_LIFE_S:
            self._show_life()

    def _show_life(self) -> None:
        """Have capture remember, or go on."""
        self._emit(Begin(self.progress.backfill, self._memory, str(self._wanted.table)))

    def _emit(self, step: Step) -> None:
        self._steps.emit(format_step(step))
        self._said_at = time.monotonic()

    def _require_wanted(self) -> None:
        if self._stop.is_set():
            raise _Stopped
