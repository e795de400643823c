"""Which rows of a chunk are stale: the one rule that makes a backfill exact.

A commit is streamed before it is visible: the record is written and sent, then, after standbys were
waited for, the transaction leaves the list of those in progress. So a change may be in the log
before a chunk whose snapshot does not see it, and the chunk's older row would come after it.

Let S be a chunk's snapshot and H its high watermark, written to the WAL after S was taken. A
transaction that S sees is in the chunk. One that it does not see and that comes after H in the log
wins over the chunk by its position. One that it does not see and that came before H is remembered
here, if remembering began before it: the rows that it changed are dropped from the chunk, and the
log has them as that transaction left them. Visibility only grows, so what the oldest open snapshot
sees may be forgotten.

Pure. A transaction's id is 32 bits in the stream and 64 in a snapshot. Source: PostgreSQL
documentation, section 9.27.10 (pg_current_snapshot).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_TEXT = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)\Z")
# Half of what 64 bits hold, so no sum of two ids overflows. No server has ids this large.
_MOST_XID = 1 << 62
_CYCLE = 1 << 32

Xids = npt.NDArray[np.int64]
# Of a batch, or of a chunk in the pieces that it was read in.
Texts: TypeAlias = pa.StringArray | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which transactions a query sees: those below `xmin`, and those below `xmax` not running."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read Postgres' text form, `xmin:xmax:xip,…`. Raises: ValueError."""
        match = _TEXT.match(text)
        if match is None:
            raise ValueError("not a snapshot; expected a form such as 727:729:727")
        listed = match[3].split(",") if match[3] else []
        running = frozenset(map(int, listed))
        xmin, xmax = int(match[1]), int(match[2])
        is_in_range = xmin <= xmax <= _MOST_XID and all(xmin <= xid < xmax for xid in running)
        if not is_in_range or len(running) < len(listed):
            raise ValueError("not a snapshot: an id in it is out of range or listed twice")
        return cls(xmin, xmax, running)

    def __str__(self) -> str:
        """Postgres' text form."""
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    def list_open_below(self, xid: int) -> tuple[int, ...]:
        """List transactions below an id that may still be open; empty if the snapshot sees all.

        A snapshot names no open transaction at or above `xmax`. If `xmax` is below the id, the list
        has `xmax` in place of the transactions that the snapshot does not name.
        """
        named = tuple(sorted(one for one in self.running if one < xid))
        return (*named, self.xmax) if self.xmax < xid else named

    def sees(self, xids: Xids) -> npt.NDArray[np.bool_]:
        """Whether each of the stream's transactions, all of them committed, is seen.

        An id of 32 bits is the one nearest to `xmax`: no server lets two transactions be further
        apart than half of the cycle.
        """
        ahead = (xids - self.xmax) & (_CYCLE - 1)
        full = self.xmax + ahead - _CYCLE
        is_past = ahead >= _CYCLE // 2
        is_running = np.isin(full, np.array(sorted(self.running), np.int64))
        seen: npt.NDArray[np.bool_] = is_past & ((full < self.xmin) | ~is_running)
        return seen


class Memory:
    """The keys of one table that the log's transactions changed since remembering began."""

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._changed: list[tuple[Xids, pa.StringArray]] = []
        self._emptied: set[int] = set()
        self.is_void = False

    @property
    def size(self) -> int:
        """Bytes that are remembered."""
        return sum(xids.nbytes + keys.nbytes for xids, keys in self._changed)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered that a snapshot could fail to see."""
        return not self.is_void and not self._changed and not self._emptied

    def remember(self, xids: Xids, keys: pa.StringArray) -> None:
        """Remember keys, each with the transaction that changed it."""
        if len(xids) and not self.is_void:
            self._changed.append((xids, keys))

    def remember_emptied(self, xids: Iterable[int]) -> None:
        """Remember transactions after which no key is as it was."""
        self._emptied.update(xids)

    def give_up(self) -> None:
        """Forget everything: from now on nobody knows which rows of a chunk are stale."""
        self._changed.clear()
        self.is_void = True

    def find_current(self, snapshot: Snapshot, keys: Texts) -> npt.NDArray[np.bool_]:
        """Which rows of a chunk that was read by a snapshot are not stale, by their keys."""
        assert not self.is_void
        if not snapshot.sees(_to_xids(self._emptied)).all():
            return np.zeros(len(keys), np.bool_)
        unseen = [changed.filter(pa.array(~snapshot.sees(xids))) for xids, changed in self._changed]
        if not any(map(len, unseen)):
            return np.ones(len(keys), np.bool_)
        is_stale = pc.is_in(keys, value_set=pa.chunked_array(unseen, pa.string()))
        current: npt.NDArray[np.bool_] = ~is_stale.to_numpy(zero_copy_only=False)
        return current

    def forget(self, oldest: Snapshot) -> None:
        """Forget what the oldest open snapshot sees: every later one sees it too."""
        emptied = _to_xids(self._emptied)
        self._emptied = set(emptied[~oldest.sees(emptied)].tolist())
        unseen = [(xids, keys, ~oldest.sees(xids)) for xids, keys in self._changed]
        self._changed = [
            (xids[kept], keys.filter(pa.array(kept))) for xids, keys, kept in unseen if kept.any()
        ]


def find_common(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The snapshot that sees only what every one of some sees."""
    listed = list(snapshots)
    xmax = min(one.xmax for one in listed)
    running = {xid for one in listed for xid in one.running if xid < xmax}
    return Snapshot(min(one.xmin for one in listed), xmax, frozenset(running))


def _to_xids(xids: Iterable[int]) -> Xids:
    return np.array(sorted(xids), np.int64)


def join_key(columns: list[Texts]) -> Texts:
    """The text of each row's key from those of its columns; equal only where all of them are."""
    if len(columns) == 1:
        return columns[0]
    parts: list[Texts] = []
    for column in columns:
        parts += (pc.binary_length(column).cast(pa.string()), column)
    return pc.binary_join_element_wise(*parts, ":", null_handling="emit_null")
