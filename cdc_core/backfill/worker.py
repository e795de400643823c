"""Runs a backfill: reads a table, or a part of it, until the log has all of it.

Capture may be any process that shares the lake and its spool. A backfill that is killed leaves no
wrong row in the log: a chunk without a watermark never enters the log. The next run reads what the
log does not have yet. Any process can pause, resume and cancel a backfill, through the ledger.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from cdc_core.backfill.chunk_size import ChunkSize
from cdc_core.backfill.completing import KEYS_AT_ONCE, complete_rows
from cdc_core.backfill.limits import BackfillLimits
from cdc_core.backfill.plan import Plan, Range
from cdc_core.backfill.request import BackfillRequest, Resolved, resolve
from cdc_core.backfill.restart_reasons import HIDDEN, HIDDEN_KEY, OTHER_KEY, KeyChanged, Rewritten
from cdc_core.backfill.results import (
    BackfillProgress,
    read_said,
    read_staged_chunk,
)
from cdc_core.backfill.session import EpochOver, Session, SessionCallbacks
from cdc_core.errors import Retry, WalgateError
from cdc_core.settings import LakeSettings
from cdc_core.source.backfill_marks import BackfillMarkConnection
from cdc_core.spooled import Key
from cdc_core.staging.backfills import BackfillLedger, BackfillReport, Begun, StagedChunk
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.orders import Orders
from cdc_core.staging.tail import read_marks
from cdc_core.table_states import BackfillState, require_move
from cdc_core.vocabulary import Lsn

_HELD_S = 60.0
_PAUSED_LOOK_S = 0.2
_AGAIN_S = 2.0
# Each record costs a commit and a file. A late one is harmless: the log itself has the chunks.
_RECORD_S = 1.0

_logger = logging.getLogger("walgate.backfill")


class _Stopped(Exception):
    """The worker was asked to stop before the backfill was done; the next run resumes it."""


class _Paused(Exception):
    """An order pauses the backfill."""


class _Cancelled(Exception):
    """An order cancels the backfill."""


class Backfill:
    """One run of a backfill of a table, or of a part of it."""

    def __init__(
        self,
        lake: LakeSettings,
        wanted: BackfillRequest,
        *,
        sharing: BackfillLimits,
        stop: threading.Event,
        on_progress: Callable[[BackfillProgress], None] = lambda _: None,
        is_anew: bool = False,
    ) -> None:
        """Prepare a run; `run` and `reread` connect to the source.

        `is_anew` reads everything again, also what an unfinished backfill has brought.
        """
        self._lake = lake
        self._wanted = wanted
        self._sharing = sharing
        self._stop = stop
        self._on_progress = on_progress
        self._is_anew = is_anew
        self._ledger = BackfillLedger(lake.root)
        self._steps = BackfillMarkConnection(wanted.source, wanted.find_history)
        self._orders: Orders | None = None
        self._order: BackfillState | None = None
        self._begun: Begun | None = None
        self._unrecorded: list[StagedChunk] = []
        self._recorded_at = 0.0
        self._is_read_first = False
        self.progress = BackfillProgress("")

    def run(self) -> BackfillState:
        """Bring the wanted part into the log, then sweep the rows that the source no longer has.

        Returns the final state: done, cancelled, or, after a request to stop, stopped or paused.
        Raises: WalgateError.
        """
        resolved = self._resolve()
        if resolved is None:
            return BackfillState.STOPPED
        self._wanted = replace(self._wanted, scope=resolved.scope, by=resolved.by)
        unfinished = self._ledger.find_unfinished(self._wanted.table, resolved.scope)
        try:
            if unfinished is not None and not self._is_anew:
                state = self._run_as(unfinished.begun.id, resolved, unfinished)
                if state is not None:
                    return state
            # Begin again under a new id if the old one cannot be resumed (restart_reasons.py).
            while (state := self._run_as(uuid.uuid4().hex, resolved, None)) is None:
                resolved = self._resolve()
                if resolved is None:
                    return BackfillState.STOPPED
                self._wanted = replace(self._wanted, by=resolved.by)
            return state
        finally:
            self._steps.close()

    def reread(self, keys: Sequence[Key]) -> bool:
        """Bring the present rows of some keys into the log, and a delete for a key without a row.

        Returns False if a request to stop, a new epoch or a rewrite of the table came before it
        was done. Raises: WalgateError.
        """
        name = uuid.uuid4().hex
        self.progress = BackfillProgress(name)
        self._orders = Orders(self._lake.root, name)
        try:
            with ChunkFolder(self._lake.spool).claim(name):
                session = self._open_session(name)
                try:
                    session.begin()
                    session.read(Plan.of_keys(keys, at_once=KEYS_AT_ONCE))
                finally:
                    session.end()
        except (_Stopped, EpochOver, Rewritten):
            return False
        finally:
            self._steps.close()
        return True

    def _resolve(self) -> Resolved | None:
        """Read the facts about the wanted part, with retries; None after a request to stop.

        Raises: WalgateError, if another try does not help.
        """
        while not self._stop.is_set():
            try:
                return resolve(self._wanted)
            except WalgateError as error:
                if error.retry is Retry.AFTER_FIX:
                    raise
                fields = {"reason": error.message, "retry_s": _AGAIN_S}
                _logger.warning("backfill waits", extra={"fields": fields})
            self._stop.wait(_AGAIN_S)
        return None

    def _run_as(
        self, name: str, resolved: Resolved, unfinished: BackfillReport | None
    ) -> BackfillState | None:
        """Run under an id; None if the backfill must begin again under a new id."""
        with ChunkFolder(self._lake.spool).claim(name):
            self._orders, self._order = Orders(self._lake.root, name), None
            self._begun = None if unfinished is None else unfinished.begun
            self._reset_progress(name, resolved, unfinished)
            if unfinished is not None and unfinished.state is not BackfillState.BEGUN:
                self.progress = replace(self.progress, state=unfinished.state)
                self._record_state(BackfillState.RESUMED)
            while True:
                try:
                    return self._run_session(name, resolved)
                except _Stopped:
                    self._record_state(BackfillState.STOPPED)
                    return BackfillState.STOPPED
                except _Cancelled:
                    return self._note_state(BackfillState.CANCELLED)
                except _Paused:
                    state = self._wait_for_resumption()
                    if state is not BackfillState.RESUMED:
                        return state
                    self._reset_progress(name, resolved, unfinished)
                except WalgateError as error:
                    self._record_state(BackfillState.STOPPED, reason=error.message)
                    raise

    def _run_session(self, name: str, resolved: Resolved) -> BackfillState | None:
        """Run until the backfill is done; None if it must begin again under a new id.

        Raises: _Stopped, _Paused, _Cancelled, WalgateError.
        """
        session = self._open_session(name, row_bytes=resolved.row_bytes)
        try:
            start = session.begin()
            if self._begun is None:
                begun = Begun(name, self._wanted.table, start, resolved.scope)
                self._ledger.record_begun(begun, resolved.rows_estimated)
                self._begun = begun
            elif self._begun.start.epoch != start.epoch:
                return None
            if not self._read_first(session, resolved):
                return None
            plan = Plan(staged=self._find_staged(self._begun))
            session.read(plan)
            self._record_chunks()
            complete_rows(
                self._lake.root,
                self._begun,
                plan,
                self._wanted,
                has_plain_key=resolved.has_plain_key,
                read=self._read_beside,
                hold=self._hold,
            )
            swept = None
            if resolved.unswept is None:
                swept = session.sweep(self._begun.start)
            else:
                fields = {"table": str(self._wanted.table), "reason": resolved.unswept}
                _logger.warning(
                    "backfill does not remove rows that the source deleted",
                    extra={"fields": fields},
                )
        except EpochOver:
            return None
        except KeyChanged as reason:
            self._note_in_vain(str(reason))
            return None
        except Rewritten:
            self._note_in_vain("the table was rewritten or renamed after a part of it was read")
            return None
        finally:
            session.end()
            self._record_chunks()
        whole = swept if resolved.scope.is_whole else None
        self._record_state(BackfillState.DONE, swept=whole)
        return BackfillState.DONE

    def _read_first(self, session: Session, resolved: Resolved) -> bool:
        """Read the pages first if a fast reading could cost the slot; False if the epoch changed.

        Raises: as `_run_session`.
        """
        assert self._begun is not None
        if resolved.costly is None or self._is_read_first:
            return True
        session.read_first()
        self._is_read_first = True
        return session.begin().epoch == self._begun.start.epoch

    def _note_in_vain(self, reason: str) -> None:
        """Log why the backfill discards what it read and reads the table from its beginning."""
        fields = {"table": str(self._wanted.table), "reason": reason}
        _logger.warning("backfill begins again", extra={"fields": fields})

    def _hold(self, reason: str) -> None:
        """Report why nothing is read, and wait a minute. Raises: as `_run_session`."""
        self._note_held(reason)
        until = time.monotonic() + _HELD_S
        while time.monotonic() < until:
            self._require_wanted()
            self._stop.wait(_PAUSED_LOOK_S)
        self._note_held(None)

    def _read_beside(self, name: str, wanted: BackfillRequest, plan: Plan) -> None:
        """Read under another id, so the backfill's own plan never counts these chunks."""
        with ChunkFolder(self._lake.spool).claim(name):
            session = self._open_session(name, wanted=wanted)
            try:
                session.begin()
                session.read(plan)
            finally:
                session.end()

    def _open_session(
        self, name: str, *, row_bytes: float | None = None, wanted: BackfillRequest | None = None
    ) -> Session:
        """Open a session; one with `wanted` does not count its chunks for the backfill."""
        return Session(
            self._lake,
            wanted or self._wanted,
            self._steps,
            backfill=name,
            size=ChunkSize((wanted or self._wanted).chunk_rows, row_bytes=row_bytes),
            sharing=self._sharing,
            stop=self._stop,
            callbacks=SessionCallbacks(
                self._require_wanted,
                self._add_chunks if wanted is None else lambda _: None,
                self._note_held,
            ),
        )

    def _note_held(self, reason: str | None) -> None:
        """Record and report why nothing is read; None means that reading goes on."""
        state = BackfillState.RUNNING if reason is None else BackfillState.HELD
        self._record_state(state, reason=reason)

    def _wait_for_resumption(self) -> BackfillState:
        """Wait, without a connection, for another order or a stop; return the state then."""
        self._note_state(BackfillState.PAUSED)
        self._steps.close()
        while not self._stop.wait(_PAUSED_LOOK_S):
            self._take_order()
            if self._order is not None and self._order is not BackfillState.PAUSED:
                return self._note_state(self._order)
        return BackfillState.PAUSED

    def _require_wanted(self) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._take_order()
        if self._order is BackfillState.CANCELLED:
            raise _Cancelled
        if self._order is BackfillState.PAUSED:
            raise _Paused

    def _take_order(self) -> None:
        assert self._orders is not None
        self._order = self._orders.read() or self._order

    def _record_state(
        self, state: BackfillState, *, swept: Lsn | None = None, reason: str | None = None
    ) -> None:
        """Write the new state to the ledger and report it, if the backfill has begun."""
        if self._begun is not None:
            require_move(self.progress.state, state)
            self._ledger.record_state(self._begun, state, swept=swept, reason=reason)
            self._note_state(state, reason)

    def _note_state(self, state: BackfillState, reason: str | None = None) -> BackfillState:
        """Report a state that the ledger has, and return it."""
        fields = {"table": str(self._wanted.table), "backfill": self.progress.backfill}
        fields |= {} if reason is None else {"reason": reason}
        _logger.info("backfill %s", state, extra={"fields": fields})
        self.progress = replace(self.progress, state=state, reason=reason)
        self._on_progress(self.progress)
        return state

    def _reset_progress(
        self, name: str, resolved: Resolved, unfinished: BackfillReport | None
    ) -> None:
        estimated = None if unfinished is None else unfinished.rows_estimated
        self.progress = BackfillProgress(
            name,
            rows_estimated=resolved.rows_estimated if estimated is None else estimated,
            unswept=resolved.unswept,
        )

    def _find_staged(self, begun: Begun) -> list[Range]:
        """Find the ranges that the log has; count and record their chunks. Raises: KeyChanged."""
        chunks = [
            read_staged_chunk(said, mark)
            for mark in read_marks(self._lake.root, begun.start)
            if (said := read_said(mark, begun.id)) and said.get("state") == "staged"
        ]
        if any(chunk.by == HIDDEN for chunk in chunks):
            raise KeyChanged(HIDDEN_KEY)
        if any(chunk.by != self._wanted.by for chunk in chunks):
            raise KeyChanged(OTHER_KEY)
        for chunk in chunks:
            self.progress = self.progress.add(chunk)
        # If a run was killed, the log may have chunks that the ledger does not have.
        recorded = self._ledger.find_recorded(begun)
        if missing := [chunk for chunk in chunks if chunk.number not in recorded]:
            self._ledger.record_chunks(begun, missing)
        self.progress = replace(self.progress, rows_before=self.progress.rows)
        self._on_progress(self.progress)
        return [Range(chunk.number, chunk.low, chunk.high) for chunk in chunks]

    def _add_chunks(self, chunks: list[StagedChunk]) -> None:
        for chunk in chunks:
            self.progress = self.progress.add(chunk)
            self._on_progress(self.progress)
        self._unrecorded += chunks
        if time.monotonic() - self._recorded_at >= _RECORD_S:
            self._record_chunks()

    def _record_chunks(self) -> None:
        """Record the chunks that the log has taken and the ledger does not have yet."""
        if self._begun is not None and self._unrecorded:
            self._ledger.record_chunks(self._begun, self._unrecorded)
            self._recorded_at = time.monotonic()
        self._unrecorded = []
