"""Compares the transactions that the server sends again after a restart with the log. Pure.

If the commit LSN of a transaction is below the staged LSN, the log has it, and capture drops it.
The log must have exactly this transaction (commit LSN, xid, commit time), and the server must send
each one that the log has. If not, the server has another history, or the settings have changed and
ask for other publications or another origin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cdc_core.errors import (
    RECOVER,
    Retry,
    StreamRefused,
    SubscriptionChanged,
    WalgateError,
    WrongServer,
)
from cdc_core.protocol.messages import Begin
from cdc_core.vocabulary import Lsn, TransactionId

_CHANGE_BACK = (
    "change it back, run `walgate replicate --until-current`, and then change it again; if that run"
    " also reports another history, the server was restored"
)


def blame_settings(error: StreamRefused, changed: str | None) -> WalgateError:
    """Choose the error to raise if the server refuses to stream.

    `changed` names the settings that changed, if any did. They are the cause then: the server ends
    the stream if a publication is younger than the changes that the slot still has to read. The
    slot itself is healthy.
    """
    if changed is None:
        return error
    return SubscriptionChanged(
        f"{changed}, and the server cannot send what the slot still has to read: {error.message}",
        fix=_CHANGE_BACK,
        retry=Retry.AFTER_FIX,
    )


class Replay:
    """The staged transactions with entries that the server has not sent again yet."""

    def __init__(
        self,
        staged: Lsn,
        expected: Iterable[TransactionId],
        *,
        changed: str | None = None,
        trimmed: int = 0,
    ) -> None:
        """Expect that the server sends exactly `expected`, up to `staged`, in commit order.

        `changed` names the settings of the subscription that have changed since; None if none has.
        Below `trimmed`, the log may lack transactions, so none is expected there. The slot had
        confirmed them, but after a crash of the server its slot may be at an earlier LSN.
        """
        self._staged = staged
        self._trimmed = trimmed
        self._changed = changed
        self._expected = deque(expected)

    @property
    def is_checked(self) -> bool:
        """Whether the server has sent each of them again."""
        return not self._expected

    def has(self, begin: Begin) -> bool:
        """Whether a transaction that begins is staged. If it is not, this checks as `end` does."""
        if begin.commit_lsn < self._staged:
            return True
        self.end()
        return False

    def end(self) -> None:
        """Check that the server has sent all staged transactions again; it sends no more of them.

        Raises: WrongServer or SubscriptionChanged if one is missing.
        """
        if self._expected:
            missing = self._expected[0].commit_lsn
            raise self._other_history(f"did not send the transaction at {missing} again")

    def check(self, begin: Begin) -> None:
        """Compare a transaction that has entries and was sent again with the next expected one.

        Raises: WrongServer or SubscriptionChanged if they differ.
        """
        if begin.commit_lsn < self._trimmed:
            return
        sent = TransactionId(begin.commit_lsn, begin.xid, begin.committed_at_us)
        if not self._expected:
            raise self._other_history(
                f"sent a transaction at {sent.commit_lsn} that staging does not have"
            )
        held = self._expected.popleft()
        if sent != held:
            raise self._other_history(
                f"sent transaction {sent.xid} at {sent.commit_lsn}, staging has {held.xid} at"
                f" {held.commit_lsn}"
            )

    def _other_history(self, found: str) -> WalgateError:
        if self._changed is not None:
            return SubscriptionChanged(
                f"{self._changed} before capture had confirmed what is staged up to"
                f" {self._staged}: the server {found}",
                fix=_CHANGE_BACK,
                retry=Retry.AFTER_FIX,
            )
        return WrongServer(
            f"the server's history is not the one that was staged up to {self._staged}: the server"
            f" {found}",
            fix="the server was restored or replaced: " + RECOVER,
            retry=Retry.AFTER_FIX,
        )
