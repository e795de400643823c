"""How far a capture run has come, shared by its threads.

One thread writes each field, and each value is immutable, so readers need no lock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from cdc_core.vocabulary import Lsn


@dataclass(slots=True)
class CaptureProgress:
    """How far capture has staged, what it may confirm, and where the server is.

    `confirmed` is the slot's confirmed flush LSN at the start, `slot_confirmed` the one that the
    server reported last (None if it has reported none). `idle_at` is the last time, in Unix
    seconds, when nothing waited to be staged. `staged_at` is a time of the monotonic clock.
    `retained_growth` is how fast the slot's retained WAL grows, in bytes per second.
    """

    staged: Lsn
    confirmed: Lsn
    current: Lsn
    is_replay_checked: bool = False
    committed_at_us: int = 0
    rows: int = 0
    transactions: int = 0
    batches: int = 0
    idle_at: float = 0.0
    staged_at: float = field(default_factory=time.monotonic)
    state: str = "starting"
    storage_error: str | None = None
    retained_growth: float | None = None
    slot_confirmed: Lsn | None = None
    confirm: threading.Event = field(default_factory=threading.Event)
    report: threading.Event = field(default_factory=threading.Event)

    @property
    def confirmable(self) -> Lsn:
        """The LSN to confirm: the staged LSN, or the slot's own until the replay check passed."""
        return self.staged if self.is_replay_checked else self.confirmed

    def record_staged(
        self, end_lsn: Lsn, *, rows: int, transactions: int, committed_at_us: int
    ) -> None:
        """Record that a commit has returned: it moves the staged LSN and what may be confirmed."""
        self.staged = end_lsn
        self.committed_at_us = committed_at_us
        self.rows += rows
        self.transactions += transactions
        self.batches += 1
        self.staged_at = time.monotonic()
        self.storage_error = None
        self.confirm.set()
        self.report.set()

    def record_replay_checked(self) -> None:
        """Record that the slot's history is the staged one, so capture may confirm all of it."""
        self.is_replay_checked = True
        self.confirm.set()
