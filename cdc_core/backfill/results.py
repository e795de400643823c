"""Reads from the marks in the log what capture did with the steps of a backfill."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdc_core.spooled import Key
from cdc_core.staging.backfills import StagedChunk
from cdc_core.staging.tail import Staged
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Position

Said = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How much a backfill has brought into the log.

    `stale` counts rows that capture dropped, because they changed while they were read.
    `rows_before` counts those of `rows` that earlier runs have brought. `unswept` is why the
    backfill does not remove rows that the source no longer has; None if it does. `reason` is why
    it is held or was stopped.
    """

    backfill: str
    state: BackfillState = BackfillState.BEGUN
    rows_estimated: int | None = None
    chunks: int = 0
    rows: int = 0
    rows_before: int = 0
    stale: int = 0
    unswept: str | None = None
    reason: str | None = None

    def add(self, chunk: StagedChunk) -> BackfillProgress:
        """Return the progress with one more chunk."""
        return replace(
            self,
            chunks=self.chunks + 1,
            rows=self.rows + chunk.rows,
            stale=self.stale + chunk.stale,
        )


@dataclass(frozen=True, slots=True)
class Dropped:
    """The keys that capture dropped from chunks, because their rows changed while they were read.

    `by_chunk` has them by the number of the chunk. `through` is the position of the backfill's last
    chunk in the log; None if the log has no chunk of it.
    """

    by_chunk: Mapping[int, frozenset[Key]]
    through: Position | None

    @property
    def keys(self) -> frozenset[Key]:
        """The keys that capture dropped from any chunk."""
        return frozenset().union(*self.by_chunk.values())

    def find_chunks(self, keys: frozenset[Key]) -> list[int]:
        """The numbers of the chunks from which capture dropped at least one of `keys`."""
        return [number for number, dropped in self.by_chunk.items() if dropped & keys]


def read_said(staged: Staged, backfill: str) -> Said | None:
    """The content of a mark of this backfill; None for any other mark."""
    said = json.loads(staged.detail)
    return said if isinstance(said, dict) and said.get("backfill") == backfill else None


def read_staged_chunk(
    said: Said, staged: Staged, *, size: int = 0, seconds: float = 0.0
) -> StagedChunk:
    """The chunk that a watermark brought; only its worker knows the bytes and seconds."""
    return StagedChunk(
        number=said["chunk"],
        by=tuple(said["by"]),
        low=_read_key(said["low"]),
        high=_read_key(said["high"]),
        rows=said["rows"],
        stale=said["stale"],
        size=size,
        end_lsn=staged.end_lsn,
        seconds=seconds,
    )


def find_dropped(marks: Iterable[Staged], backfill: str) -> Dropped:
    """Read from the marks in the log which keys capture dropped from a backfill's chunks."""
    by_chunk: dict[int, frozenset[Key]] = {}
    through: Position | None = None
    for mark in marks:
        said = read_said(mark, backfill)
        if said is not None and said["step"] == "watermark" and said.get("state") == "staged":
            before = by_chunk.get(said["chunk"], frozenset())
            by_chunk[said["chunk"]] = before.union(map(tuple, said["dropped"]))
            through = mark.position
    return Dropped(by_chunk, through)


def _read_key(texts: list[str] | None) -> Key | None:
    return None if texts is None else tuple(texts)
