"""Checks whether the server would send again what is staged, and confirms nothing.

The collector defines what counts as an entry of the log (transactions.py). A test with random
streams ensures that this check agrees with the collector.
"""

from __future__ import annotations

from contextlib import closing

from cdc_core.capture.marks import read_mark
from cdc_core.capture.replay import Replay, blame_settings
from cdc_core.errors import StreamRefused
from cdc_core.protocol.frames import HEADER_SIZE, KEEPALIVE, parse_keepalive
from cdc_core.protocol.messages import (
    ROW_KINDS,
    Begin,
    Commit,
    LogicalMessage,
    Truncate,
    parse_message,
)
from cdc_core.settings import SourceSettings
from cdc_core.source.replication import Frame, ReplicationStream
from cdc_core.source.slot import Slot
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Log
from cdc_core.staging.subscriptions import find_subscription_change
from cdc_core.vocabulary import Lsn

_FRAMES_AT_ONCE = 4096
_WAIT_S = 0.1


def require_same_history(
    source: SourceSettings, log: Log, epoch: Epoch, *, staged: Lsn, slot: Slot
) -> None:
    """Check that the server sends exactly what is staged past the slot, and can go on from there.

    Raises: WrongServer, SubscriptionChanged, SourceError.
    """
    assert slot.confirmed_flush is not None
    expected = log.read_transactions(epoch, since=slot.confirmed_flush)
    change = find_subscription_change(log.read_subscription(), log.subscription)
    changed = None if change is None else change.explain()
    check = ResendingCheck(Replay(staged, expected, changed=changed))
    with closing(ReplicationStream(source)) as stream:
        until = stream.server.current
        stream.start(slot=slot.name, publications=source.publication, origin=source.origin)
        while not check.is_over:
            try:
                frames = stream.read_frames(most=_FRAMES_AT_ONCE, wait_s=_WAIT_S)
            except StreamRefused as error:
                raise blame_settings(error, changed) from error
            for frame in frames:
                check.take(frame, until)
            if not frames:
                # The answer says how far the server has read its WAL.
                stream.send_status(slot.confirmed_flush, is_asking=True)


class ResendingCheck:
    """Compares a stream with the log, up to the first row change that is not staged."""

    def __init__(self, replay: Replay) -> None:
        """Prepare to compare frames with `replay`."""
        self._replay = replay
        self._begun: Begin | None = None
        self._has_entries = False
        self._is_past = False
        self.is_over = False

    def take(self, frame: Frame, until: Lsn) -> None:
        """Compare one frame; a keepalive at or past `until`, between transactions, ends the check.

        Walgate's marks do not end it: the server refuses a publication that is too young only at
        the first row change. Raises: WrongServer, SubscriptionChanged.
        """
        if frame[0] == KEEPALIVE:
            if parse_keepalive(frame).wal_end >= until and self._begun is None:
                self._replay.end()
                self.is_over = True
            return
        if len(frame) > HEADER_SIZE and frame[HEADER_SIZE] in ROW_KINDS:
            self._note_change()
            return
        match parse_message(frame):
            case Begin() as begin:
                self._is_past = not self._replay.has(begin)
                self._begun, self._has_entries = begin, False
            case Commit():
                if self._begun is not None and self._has_entries and not self._is_past:
                    self._replay.check(self._begun)
                self._begun = None
            case Truncate():
                self._note_change()
            case LogicalMessage() as message if message.transactional:
                self._has_entries = self._has_entries or read_mark(message) is not None
            case _:
                pass

    def _note_change(self) -> None:
        self._has_entries = True
        self.is_over = self.is_over or self._is_past
