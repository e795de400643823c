"""Crash points: named points at which a test kills or holds this process.

`WALGATE_CRASH_AT=name[:n]` sends SIGKILL to this process at the n-th arrival.
`WALGATE_HOLD_AT=name=path` makes the process wait at the point while the file at path exists.
Without these variables the points have no effect.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

CRASH_POINTS = (
    "before_delta_commit",
    "after_delta_commit",
    "after_flush",
    "while_spooling",
    "during_shutdown",
    "in_file_rewrite",
    "before_merge_commit",
    "before_files_committed",
    "after_merge_commit",
    "before_swap",
    "after_swap",
    "before_cut",
    "after_cut",
    "after_backfill_begun",
    "after_chunk_read",
    "after_chunk_stored",
    "after_watermark",
    "before_sweep",
    "after_sweep",
    "after_recovery_begun",
    "after_slot_dropped",
    "after_slot_made",
    "after_tables_queued",
    "after_epoch_begun",
    "after_cuts_copied",
    "after_cuts_dropped",
    "after_file_removed",
    "before_tombstones",
    "between_cleanings",
    "before_log_trim",
    "before_log_compaction",
    "before_table_compaction",
)
_HOLD_POLL_S = 0.02

_arrivals: Counter[str] = Counter()


def reach(name: str) -> None:
    """Report that execution has arrived at a crash point; die or wait if a variable asks for it."""
    assert name in CRASH_POINTS, name
    _arrivals[name] += 1
    wanted, _, nth = os.environ.get("WALGATE_CRASH_AT", "").partition(":")
    if wanted == name and _arrivals[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
    held, _, path = os.environ.get("WALGATE_HOLD_AT", "").partition("=")
    while held == name and Path(path).exists():
        time.sleep(_HOLD_POLL_S)
