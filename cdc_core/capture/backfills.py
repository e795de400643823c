"""What capture does at each step of a backfill, and what the step brings into the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_core.backfill.changed_key_tracker import ChangedKeyTracker
from cdc_core.backfill.marks import (
    BackfillMark,
    BeginBackfill,
    EndBackfill,
    KeepChangedKeys,
    RequestSweep,
    Watermark,
)
from cdc_core.capture.batches import Runs, Transactions
from cdc_core.spooled import Chunk, SweepRequest
from cdc_core.vocabulary import Operation, Relation

# How long an entry may wait to be staged, as a fraction of `batch_seconds`.
# A worker waits for these entries: before it reads, after its last chunk, and after its sweep.
_AWAITED = 0.0
# A worker that has another range to read does not wait for this chunk.
_MORE_FOLLOW = 0.25


class OtherRule(Exception):
    """A worker applied another exclude or hash rule than capture. The message names the column."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """Access to the spool, where workers leave the chunks and sweeps that steps name.

    `load_chunk` and `load_sweep` return None if the spool has no such file. `load_chunk` raises
    OtherRule if the worker applied another exclude or hash rule than capture. `is_claimed` says
    whether a worker runs the backfill with this id. This stops a role of the database that invents
    a backfill: capture remembers nothing for it. Capture passes to `note` the relation of each
    chunk and sweep that it takes into the log. It does not pass that of a refused chunk, since the
    log has no row of it.
    """

    load_chunk: Callable[[Watermark], Chunk | None]
    load_sweep: Callable[[RequestSweep], SweepRequest | None]
    is_claimed: Callable[[str], bool]
    note: Callable[[Relation], None]


NOTHING_SPOOLED = Spooled(lambda _: None, lambda _: None, lambda _: False, lambda _: None)


@dataclass(frozen=True, slots=True)
class StepEntry:
    """The entry that a step becomes, and the rows that follow it; all have one relation.

    `patience` is the share of a batch's time for which they may wait before capture stages them.
    """

    operation: Operation
    detail: str
    relation: Relation | None = None
    rows: pa.Table | None = None
    patience: float = 1.0


class Backfills:
    """The backfills that run during one term of capture."""

    def __init__(self, spooled: Spooled) -> None:
        """Start with no backfill; `spooled` loads what a step names."""
        self._spooled = spooled
        self._remembering = ChangedKeyTracker()

    @property
    def is_idle(self) -> bool:
        """Whether no backfill needs reports of changes."""
        return self._remembering.is_idle

    def take(self, step: BackfillMark, detail: str, *, at_us: int) -> StepEntry:
        """Do what a step asks for, at its place in the stream; return what enters the log."""
        match step:
            case BeginBackfill():
                is_known = self._spooled.is_claimed(step.backfill)
                is_known = is_known and self._remembering.begin(step, at_us=at_us)
                return _answer(detail, is_known=is_known)
            case KeepChangedKeys():
                return _answer(detail, is_known=self._remembering.renew(step, at_us=at_us))
            case EndBackfill():
                self._remembering.end(step)
            case RequestSweep():
                return self._take_sweep(step, detail)
            case Watermark():
                return self._take_chunk(step, detail, at_us)
        return StepEntry(Operation.MARK, detail)

    def remember_rows(
        self,
        decoded: pa.RecordBatch,
        runs: Runs,
        transactions: Transactions,
        relations: Mapping[int, Relation],
    ) -> None:
        """Remember the keys of decoded rows; `relations` has their relations by version."""
        owners = np.repeat(np.array(runs.transaction, np.int64), np.array(runs.rows, np.int64))
        self._remembering.expire(transactions.committed_at_us[-1])
        self._remembering.remember_rows(
            decoded, np.array(transactions.xid, np.int64)[owners], relations
        )

    def remember_truncate(self, table: str, xid: int) -> None:
        """Remember that a transaction emptied a table."""
        self._remembering.remember_truncate(table, xid)

    def _take_chunk(self, step: Watermark, detail: str, at_us: int) -> StepEntry:
        try:
            chunk = self._spooled.load_chunk(step)
        except OtherRule as other:
            said = _add(detail, state="refused", reason=str(other))
            return StepEntry(Operation.MARK, said, patience=_AWAITED)
        admitted = None if chunk is None else self._remembering.admit(step, chunk, at_us=at_us)
        if chunk is None or admitted is None:
            return StepEntry(Operation.MARK, _add(detail, state="void"), patience=_AWAITED)
        self._spooled.note(chunk.relation)
        said = _add(
            detail,
            state="staged",
            table=str(chunk.relation.table),
            rows=admitted.read,
            stale=admitted.stale,
            by=chunk.by,
            low=chunk.low,
            high=chunk.high,
            dropped=admitted.dropped,
        )
        patience = _MORE_FOLLOW if step.has_more else _AWAITED
        return StepEntry(
            Operation.MARK, said, relation=chunk.relation, rows=admitted.rows, patience=patience
        )

    def _take_sweep(self, step: RequestSweep, detail: str) -> StepEntry:
        sweeping = self._spooled.load_sweep(step)
        if sweeping is None:
            return StepEntry(Operation.MARK, _add(detail, state="void"), patience=_AWAITED)
        self._spooled.note(sweeping.relation)
        scope = sweeping.scope
        start = [sweeping.start.epoch, int(sweeping.start.commit_lsn), sweeping.start.seq]
        return StepEntry(
            Operation.SWEEP,
            _add(detail, state="staged", start=start, low=scope.low, high=scope.high),
            relation=sweeping.relation,
            patience=_AWAITED,
        )


def _answer(detail: str, *, is_known: bool) -> StepEntry:
    """The log entry from which a worker learns whether capture keeps its changed keys."""
    state = "kept" if is_known else "void"
    return StepEntry(Operation.MARK, _add(detail, state=state), patience=_AWAITED)


def _add(detail: str, **more: object) -> str:
    return json.dumps(json.loads(detail) | more, ensure_ascii=False)
