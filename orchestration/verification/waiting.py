"""Waits of a verification: for a first reading of a table, and for capture to stage an LSN."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

from cdc_core.errors import Retry, SourceError, StagingError, WalgateError
from cdc_core.settings import SourceSettings
from cdc_core.source.first_reading import FirstReading
from cdc_core.source.primary import FindHistory
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake.lake import Bound, Lake

# The longest wait for capture to stage more.
_STAGED_S = 120.0
_POLL_S, _HELD_LOOK_S = 0.1, 1.0

Tell = Callable[[str], None]


def read_first(
    source: SourceSettings,
    table: TableName,
    find_history: FindHistory,
    *,
    stop: threading.Event,
    tell: Tell,
) -> None:
    """Read a table's pages once before a snapshot is opened; wait while the slot has no room.

    If a table cannot be read, this returns, and the comparison reports the reason later.
    Raises: SourceError if no page could be read for two minutes.
    """
    held_since: float | None = None
    with closing(FirstReading(source, table, find_history=find_history)) as first:
        while not first.is_done:
            require_going(stop)
            try:
                reason = first.read_some()
            except (SourceError, StagingError) as error:
                if error.retry is Retry.AFTER_FIX:
                    return
                reason = error.message
                first.close()
            if reason is None:
                held_since = None
                continue
            tell(f"{table}: waiting: {reason}")
            held_since = held_since or time.monotonic()
            if time.monotonic() - held_since > _STAGED_S:
                raise SourceError(
                    f"could read no page for {_STAGED_S:g} s: {reason}",
                    fix="check that capture runs, and end long transactions in the source",
                    retry=Retry.LATER,
                )
            stop.wait(_HELD_LOOK_S)


def await_staged(lake: Lake, lsn: Lsn, *, stop: threading.Event, tell: Tell) -> Bound:
    """Wait until the log has reached an LSN; return it as a bound. Raises: StagingError."""
    tell(f"waiting until {lsn} is staged")
    staged, progressed_at = None, time.monotonic()
    while True:
        require_going(stop)
        epochs = lake.read_epochs()
        now = lake.read_staged(epochs)
        # An epoch that has just begun has nothing staged, and LSNs of other epochs prove nothing.
        if now is not None and now.epoch == epochs[-1].number and now.lsn >= lsn:
            return Bound(now.epoch, lsn)
        if now != staged:
            staged, progressed_at = now, time.monotonic()
        if time.monotonic() - progressed_at > _STAGED_S:
            reached = "nothing" if staged is None else str(staged.lsn)
            raise StagingError(
                f"capture has staged nothing new for {_STAGED_S:g} s: expected {lsn}, found"
                f" {reached}",
                fix="see `walgate status`; verify again once capture runs",
                retry=Retry.LATER,
            )
        stop.wait(_POLL_S)


def require_going(stop: threading.Event) -> None:
    """Check that nobody has stopped the verification. Raises: WalgateError."""
    if stop.is_set():
        raise WalgateError(
            "the verification was stopped before its end, and recorded nothing",
            fix="run it again",
            retry=Retry.LATER,
        )
