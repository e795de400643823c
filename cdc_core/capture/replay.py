"""What the server sends again after a restart, held against what staging has.

A transaction whose commit LSN lies below the staged LSN is in staging already and is dropped, but
only if staging holds that very transaction (commit LSN, xid, commit time), and none that staging
holds may be missing: anything else is another history, unless other publications or another origin
are asked for than were then. Pure.
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
    " finds another history, the server was restored, too"
)


def blame_settings(error: StreamRefused, changed: str | None) -> WalgateError:
    """The error to raise where the server refuses to stream.

    `changed` names the settings that changed, if any did. They are the cause then: the server ends
    the stream where a publication is younger than the changes that the slot still has to read. The
    slot itself is sound.
    """
    if changed is None:
        return error
    return SubscriptionChanged(
        f"{changed}, and the server cannot send what the slot still has to read: {error.message}",
        fix=_CHANGE_BACK,
        retry=Retry.AFTER_FIX,
    )


class Replay:
    """The transactions with entries that staging holds and the server has yet to send again."""

    def __init__(
        self, staged: Lsn, expected: Iterable[TransactionId], *, changed: str | None = None
    ) -> None:
        """What ends at or below `staged` must be exactly `expected`, in commit order.

        `changed` says which settings the server is asked by were others when that was staged.
        """
        self._staged = staged
        self._changed = changed
        self._expected = deque(expected)

    @property
    def is_checked(self) -> bool:
        """Whether every one of them was seen again."""
        return not self._expected

    def has(self, begin: Begin) -> bool:
        """Whether a transaction that begins is staged. Raises as `end`, past a missing one."""
        if begin.commit_lsn < self._staged:
            return True
        self.end()
        return False

    def end(self) -> None:
        """Nothing more comes that is staged.

        Raises: WrongServer or SubscriptionChanged where one is missing.
        """
        if self._expected:
            raise self._other_history(f"lacks the transaction at {self._expected[0].commit_lsn}")

    def check(self, begin: Begin) -> None:
        """Take a transaction with entries that was sent again.

        Raises: WrongServer or SubscriptionChanged where it is another one.
        """
        sent = TransactionId(begin.commit_lsn, begin.xid, begin.committed_at_us)
        if not self._expected:
            raise self._other_history(f"has a transaction at {sent.commit_lsn} more")
        held = self._expected.popleft()
        if sent != held:
            raise self._other_history(
                f"has transaction {sent.xid} at {sent.commit_lsn}, staging holds {held.xid} at"
                f" {held.commit_lsn}"
            )

    def _other_history(self, found: str) -> WalgateError:
        if self._changed is not None:
            return SubscriptionChanged(
                f"{self._changed} before the server was told that all is staged up to"
                f" {self._staged}: what it sends again {found}",
                fix=_CHANGE_BACK,
                retry=Retry.AFTER_FIX,
            )
        return WrongServer(
            f"the server's history is not the one that was staged up to {self._staged}: what it"
            f" sends again {found}",
            fix="the server was restored or replaced: " + RECOVER,
            retry=Retry.AFTER_FIX,
        )
