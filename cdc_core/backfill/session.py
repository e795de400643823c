"""One session of a backfill: asks capture to remember changed keys, then reads ranges.

A session sends its steps to capture through the source's WAL, leaves its rows in the spool, and
reads from the log what capture did with them. A pause ends a session. An ended session leaves no
lock, no snapshot and no changed keys behind. The next session reads what the log does not have yet.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from cdc_core.backfill.changed_keys_request import ChangedKeysRequest
from cdc_core.backfill.chunk_size import ChunkSize
from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.marks import (
    BackfillMark,
    BeginBackfill,
    EndBackfill,
    KeepChangedKeys,
    RequestSweep,
    format_backfill_mark,
)
from cdc_core.backfill.plan import Plan
from cdc_core.backfill.reading import Reading
from cdc_core.backfill.request import BackfillRequest, hold_relation
from cdc_core.backfill.results import read_said, read_staged_chunk
from cdc_core.backfill.visibility import Snapshot
from cdc_core.backoff import Backoff
from cdc_core.crash_points import reach
from cdc_core.errors import ConfigurationError, Retry, WalgateError
from cdc_core.settings import LakeSettings
from cdc_core.source.backfill_marks import BackfillMarkConnection
from cdc_core.source.first_reading import FirstReading
from cdc_core.spooled import SweepRequest
from cdc_core.staging.backfills import StagedChunk
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.commits import CommitsGone
from cdc_core.staging.tail import Staged, Tail
from cdc_core.vocabulary import Lsn, Position

_SIGN_OF_LIFE_S = 60.0
_LOOK_S = 0.05
_HELD_LOOK_S = 1.0
_DRAIN_S = 10.0
_SAY_AGAIN_S = 10.0
# The session missed a commit that may have capture's answer to the sweep.
_SWEPT_UNKNOWN = "unknown"
# The same as in `capture/run.py`: a session also waits for the source, and for capture.
_BACKOFF = Backoff(first_s=0.5, max_s=30.0)

_logger = logging.getLogger("walgate.backfill")


@dataclass(frozen=True, slots=True)
class SessionCallbacks:
    """The callbacks of a session.

    `require_wanted` raises if the session must not go on. `on_chunks` receives the chunks that the
    log has taken since the last call; the session calls it often, also with no chunk. `on_held`
    receives the reason why nothing is read; None once reading goes on.
    """

    require_wanted: Callable[[], None]
    on_chunks: Callable[[list[StagedChunk]], None]
    on_held: Callable[[str | None], None]


class EpochOver(Exception):
    """The log has a new epoch, which does not have this session's earlier steps and never will."""


class Session:
    """The requests of one session to capture, and the answers that it finds in the log."""

    def __init__(
        self,
        lake: LakeSettings,
        wanted: BackfillRequest,
        steps: BackfillMarkConnection,
        *,
        backfill: str,
        size: ChunkSize,
        sharing: BackfillLimits,
        stop: threading.Event,
        callbacks: SessionCallbacks,
    ) -> None:
        """Prepare a session; `begin` makes the first request."""
        self._wanted = wanted
        self._steps = steps
        self._backfill = backfill
        self._size = size
        self._sharing = sharing
        self._stop = stop
        self._callbacks = callbacks
        self._held: str | None = None
        self._folder = ChunkFolder(lake.spool)
        self._root = lake.root
        self._tail = Tail(lake.root)
        self._memory = ChangedKeysRequest(uuid.uuid4().hex)
        self._epoch: int | None = None
        self._swept: str | None = None
        self._swept_lsn: Lsn | None = None
        self._said_at = 0.0
        self._reading: Reading | None = None

    def read_first(self) -> None:
        """Read the table's pages once; wait while the slot has too little room for their WAL.

        Capture first forgets the changed keys. Call `begin` afterwards to ask for new ones.
        Raises: WalgateError, and what `require_wanted` raises.
        """
        self.end()
        wanted, failures = self._wanted, 0
        first = FirstReading(wanted.source, wanted.table, find_history=wanted.find_history)
        with closing(first):
            while not first.is_done:
                self._callbacks.require_wanted()
                try:
                    # Two tables must not both use the room that the slot has now.
                    with self._sharing.first_reading:
                        held = first.read_some()
                except WalgateError as error:
                    first.close()
                    failures += 1
                    self._pause_after(error, failures)
                    continue
                failures = 0
                self._note_held(held)
                if held is not None:
                    self._stop.wait(_HELD_LOOK_S)

    def begin(self) -> Position:
        """Have capture remember changed keys from here on; wait until earlier commits are visible.

        The worker takes a transaction id after the message. Each transaction whose commit record is
        before the message has a smaller id. While such a transaction is open, a snapshot need not
        list it: no snapshot lists an open transaction above the newest one that ended.

        Returns the start position.
        Raises: WalgateError, and what `require_wanted` raises; EpochOver, as `read` and `sweep` do.
        """
        refusals = 0
        while (start := self._begin_once()) is None:
            refusals += 1
            pause = _BACKOFF.pause_after(refusals)
            fields = {
                "reason": "capture does not have the changed keys of this backfill",
                "retry_s": pause,
            }
            _logger.warning(
                "backfill asks capture again to remember changed keys", extra={"fields": fields}
            )
            self._stop.wait(pause)
        reach("after_backfill_begun")
        self._epoch = start.epoch
        return start

    def read(self, plan: Plan) -> None:
        """Read until the log has every range of a plan.

        Raises: WalgateError, KeyChanged, Rewritten.
        """
        reading = Reading(
            self._wanted,
            plan,
            self._folder,
            backfill=self._backfill,
            size=self._size,
            sharing=self._sharing,
        )
        self._reading = reading
        try:
            self._read_ranges(reading)
        except WalgateError:
            raise
        except Exception:
            self._drain(reading)
            raise
        finally:
            reading.close()

    def sweep(self, start: Position) -> Lsn:
        """Have capture sweep all rows older than `start`; return the end LSN of the sweep.

        Raises: WalgateError, Rewritten.
        """
        failures = 0
        while self._swept != "staged":
            self._callbacks.require_wanted()
            self._swept = None
            try:
                with hold_relation(self._wanted) as (relation, emit):
                    if self._reading is not None:
                        self._reading.require_values_kept(relation)
                    # Store it at each try: a capture that starts again empties the spool.
                    sweeping = SweepRequest(relation, start, self._wanted.scope)
                    self._folder.store_sweep(sweeping, backfill=self._backfill)
                    reach("before_sweep")
                    emit(RequestSweep(self._backfill))
                reach("after_sweep")
                self._await(lambda: "capture to stage the sweep" if self._swept is None else None)
            except WalgateError as error:
                failures += 1
                self._pause_after(error, failures)
        assert self._swept_lsn is not None
        return self._swept_lsn

    def end(self) -> None:
        """Have capture forget the keys. If the message fails, capture does so after ten minutes."""
        with suppress(WalgateError):
            self._emit(EndBackfill(self._backfill, self._memory.id))

    def _begin_once(self) -> Position | None:
        """Have capture remember changed keys; None if the session must ask again.

        Capture may refuse, or forget them before use, or the session may miss its answer.
        """
        memory = self._memory = ChangedKeysRequest(uuid.uuid4().hex)
        self._emit(BeginBackfill(self._backfill, memory.id, str(self._wanted.table)))
        taken = self._steps.take_xid()
        self._await(lambda: None if memory.is_answered else "capture to answer the backfill")

        def find_unseen() -> str | None:
            if memory.is_forgotten:
                return None
            still_open = Snapshot.parse(self._steps.read_snapshot()).list_open_below(taken)
            names = ", ".join(str(xid) for xid in still_open[:5])
            return f"the older transactions {names} to end" if names else None

        self._await(find_unseen)
        memory.is_settled = True
        return memory.remembered_from if memory.is_usable else None

    def _read_ranges(self, reading: Reading) -> None:
        """Read until the log has every range."""
        running: set[Future[None]] = set()
        failures, reads = 0, 0
        with (
            ThreadPoolExecutor(self._sharing.parallel, "walgate-chunk") as pool,
            _interrupting(reading),
        ):
            while not reading.is_done:
                self._callbacks.require_wanted()
                while self._may_read(reading) and self._sharing.try_begin():
                    reads += 1
                    running.add(pool.submit(self._read_range, reading, reads))
                done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                if not done and not running:
                    self._stop.wait(_LOOK_S)  # Wait for capture to answer, or for room to read.
                try:
                    for read in done:
                        read.result()
                        failures = 0
                    self._take_news()
                    self._show_life_again()
                    if not self._memory.is_usable and not running:
                        reading.void_unanswered(self._memory.id)
                        self.begin()
                except WalgateError as error:
                    failures += 1
                    self._pause_after(error, failures)

    def _drain(self, reading: Reading) -> None:
        """Wait ten seconds at most for capture to take what was read, to avoid a second read."""
        until = time.monotonic() + _DRAIN_S
        with suppress(WalgateError):
            while reading.has_waiting and time.monotonic() < until:
                self._take_news()
                threading.Event().wait(_LOOK_S)

    def _may_read(self, reading: Reading) -> bool:
        if not self._memory.is_usable or not reading.has_more:
            return False
        held = self._sharing.held
        self._note_held(held)
        return held is None

    def _note_held(self, held: str | None) -> None:
        if (held is None) != (self._held is None):
            self._callbacks.on_held(held)
        self._held = held

    def _read_range(self, reading: Reading, number: int) -> None:
        try:
            reading.read_range(self._memory.id, number)
        finally:
            self._sharing.end()

    def _pause_after(self, error: WalgateError, failures: int) -> None:
        """Wait before the next try. Raises: the error, if it needs a person."""
        if error.retry is Retry.AFTER_FIX:
            raise error
        pause = _BACKOFF.pause_after(failures)
        fields = {"reason": error.message, "retry_s": pause}
        _logger.warning("backfill interrupted", extra={"fields": fields})
        self._stop.wait(pause)

    def _await(self, find_awaited: Callable[[], str | None]) -> None:
        """Wait until `find_awaited` returns None; log every ten seconds what it returns."""
        began = said = time.monotonic()
        while (what := find_awaited()) is not None:
            self._callbacks.require_wanted()
            self._take_news()
            self._show_life_again()
            now = time.monotonic()
            if now - said >= _SAY_AGAIN_S:
                said = now
                fields = {"for": what, "seconds": round(now - began)}
                _logger.warning("backfill waits", extra={"fields": fields})
            self._stop.wait(_LOOK_S)

    def _take_news(self) -> None:
        """Read from the log what capture did with the steps of this session."""
        chunks: list[StagedChunk] = []
        for staged in self._read_tail():
            if self._epoch is not None and staged.position.epoch != self._epoch:
                raise EpochOver
            said = read_said(staged, self._backfill)
            if said is None:
                continue
            self._memory.note(said, staged.position)
            if said["step"] == "sweep":
                self._swept, self._swept_lsn = said["state"], staged.end_lsn
            elif said["step"] == "watermark" and self._reading is not None:
                number, attempt = said["chunk"], said["attempt"]
                if said["state"] == "refused":
                    raise ConfigurationError(
                        [f"capture refused a chunk of {self._wanted.table}: {said['reason']}"],
                        fix="restart capture, then run the backfill again with the same settings",
                    )
                if said["state"] == "void":
                    self._reading.record_void(said["memory"], number, attempt)
                elif left := self._reading.record_staged(said["memory"], number, attempt):
                    size, seconds = left.size, left.seconds
                    chunks.append(read_staged_chunk(said, staged, size=size, seconds=seconds))
        self._callbacks.on_chunks(chunks)

    def _read_tail(self) -> Iterator[Staged]:
        """The newest marks and sweeps. If their commits are gone, the session asks capture again.

        Commits of the log go after some time. So this happens after the process stood still, or
        after long work between two steps.
        """
        try:
            yield from self._tail.read()
        except CommitsGone as error:
            _logger.warning("backfill missed answers", extra={"fields": {"reason": error.message}})
            self._tail = Tail(self._root)
            self._memory.is_forgotten = True
            self._swept = _SWEPT_UNKNOWN

    def _show_life_again(self) -> None:
        if time.monotonic() - self._said_at >= _SIGN_OF_LIFE_S:
            self._emit(KeepChangedKeys(self._backfill, self._memory.id))

    def _emit(self, step: BackfillMark) -> None:
        self._steps.emit(format_backfill_mark(step))
        self._said_at = time.monotonic()


@contextmanager
def _interrupting(reading: Reading) -> Iterator[None]:
    """Interrupt the reads if the block raises, so that nobody waits for their end."""
    try:
        yield
    except BaseException:
        reading.interrupt()
        raise
