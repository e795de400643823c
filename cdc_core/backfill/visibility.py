"""Which rows of a chunk are stale: the one rule that makes a backfill exact.

PostgreSQL streams a commit before the commit is visible. It writes and sends the commit record,
waits for standbys, and only then takes the transaction off the list of those in progress. So the
log may have a change before a chunk whose snapshot does not see that change. The older row of the
chunk would then come after the change.

Let S be the snapshot of a chunk, and W its watermark. The worker writes W to the WAL after it has
taken S. The chunk has every transaction that S sees. If S does not see a transaction that comes
after W in the log, the transaction wins over the chunk by its position. If S does not see a
transaction that came before W, capture has remembered here the keys that it changed, if remembering
began before it. Capture drops the rows with these keys from the chunk; the log has them as the
transaction left them. Visibility only grows, so capture may forget what the oldest open snapshot
sees.

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
# Half of what a 64-bit integer holds, so no sum of two ids overflows. Servers have smaller ids.
_MAX_XID = 1 << 62
_CYCLE = 1 << 32

Xids = npt.NDArray[np.int64]
# Texts of a batch, or of a chunk in the pieces that the worker read.
Texts: TypeAlias = pa.StringArray | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that a query sees: those below `xmax` that are not in `running`.

    The query sees all transactions below `xmin`.
    """

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
        is_in_range = xmin <= xmax <= _MAX_XID and all(xmin <= xid < xmax for xid in running)
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
        """Whether the snapshot sees each of some committed transactions of the stream.

        An id of 32 bits means the id of 64 bits that is nearest to `xmax`: no server lets two
        transactions be further apart than half of the cycle.
        """
        ahead = (xids - self.xmax) & (_CYCLE - 1)
        full = self.xmax + ahead - _CYCLE
        is_past = ahead >= _CYCLE // 2
        is_running = np.isin(full, np.array(sorted(self.running), np.int64))
        seen: npt.NDArray[np.bool_] = is_past & ((full < self.xmin) | ~is_running)
        return seen


class ChangedKeys:
    """The changed keys of one table: those that transactions changed since remembering began."""

    def __init__(self) -> None:
        """Start with no changed keys."""
        self._changed: list[tuple[Xids, pa.StringArray]] = []
        self._emptied: set[int] = set()
        self.is_void = False

    @property
    def size(self) -> int:
        """The bytes of the changed keys, with their transaction ids."""
        return sum(xids.nbytes + keys.nbytes for xids, keys in self._changed)

    @property
    def is_empty(self) -> bool:
        """Whether no row can be stale: no change is remembered, and none was given up."""
        return not self.is_void and not self._changed and not self._emptied

    def remember(self, xids: Xids, keys: pa.StringArray) -> None:
        """Remember keys, each with the transaction that changed it."""
        if len(xids) and not self.is_void:
            self._changed.append((xids, keys))

    def remember_emptied(self, xids: Iterable[int]) -> None:
        """Remember transactions that may have changed every key of the table."""
        self._emptied.update(xids)

    def give_up(self) -> None:
        """Forget all keys, and remember no more: from now on, stale rows cannot be found."""
        self._changed.clear()
        self.is_void = True

    def find_current(self, snapshot: Snapshot, keys: Texts) -> npt.NDArray[np.bool_]:
        """Whether each row of a chunk is current, by its key and the snapshot of the chunk."""
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
        """Forget what the oldest open snapshot sees: every later snapshot sees it, too."""
        emptied = _to_xids(self._emptied)
        self._emptied = set(emptied[~oldest.sees(emptied)].tolist())
        unseen = [(xids, keys, ~oldest.sees(xids)) for xids, keys in self._changed]
        self._changed = [
            (xids[kept], keys.filter(pa.array(kept))) for xids, keys, kept in unseen if kept.any()
        ]


def find_common(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The snapshot that sees only what every given snapshot sees."""
    listed = list(snapshots)
    xmax = min(one.xmax for one in listed)
    running = {xid for one in listed for xid in one.running if xid < xmax}
    return Snapshot(min(one.xmin for one in listed), xmax, frozenset(running))


def _to_xids(xids: Iterable[int]) -> Xids:
    return np.array(sorted(xids), np.int64)


def join_key(columns: list[Texts]) -> Texts:
    """Join key columns into one text per row; two texts are equal only if all columns are."""
    if len(columns) == 1:
        return columns[0]
    parts: list[Texts] = []
    for column in columns:
        parts += (pc.binary_length(column).cast(pa.string()), column)
    return pc.binary_join_element_wise(*parts, ":", null_handling="emit_null")
