"""How far a capture run has come, shared by its threads.

Each field has one writing thread and holds one immutable value, so readers need no lock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from cdc_core.vocabulary import Lsn


@dataclass(slots=True)
class Progress:
    """What was staged, what may be confirmed, where the server is.

    `confirmed` is where the slot was at the start. `idle_at`, in Unix seconds, is when nothing was
    last waiting to be staged; other times are of the monotonic clock. `retained_growth`, in bytes a
    second, is that of the WAL which the slot holds back.
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
    confirm: threading.Event = field(default_factory=threading.Event)
    report: threading.Event = field(default_factory=threading.Event)

    @property
    def confirmable(self) -> Lsn:
        """The slot's own position until the replay check has passed, then the staged LSN."""
        return self.staged if self.is_replay_checked else self.confirmed

    def record_staged(
        self, end_lsn: Lsn, *, rows: int, transactions: int, committed_at_us: int
    ) -> None:
        """A commit has returned: the staged LSN moves, and with it what may be confirmed."""
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
        """The slot's history is the staged one: all of it may be confirmed."""
        self.is_replay_checked = True
        self.confirm.set()
