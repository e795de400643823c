"""Every error that Walgate raises on purpose.

An error says what happened, to what, expected against found; its `fix` says in one sentence what to
do. Neither ever holds a row value or a secret. `retry` is all that orchestration reads to choose
between another try and a person, and where the exit code comes from.
"""

from __future__ import annotations

from enum import Enum

# What a person does where the slot and the log no longer belong together.
RECOVER = (
    "run `walgate recover`: it says what it would do, and with --yes begins a new epoch, in which"
    " every table is read again"
)


class Retry(Enum):
    """When the same call may succeed."""

    LATER = "later"
    AFTER_FIX = "after_fix"


class WalgateError(Exception):
    """What happened, with the fix; `str()` is one line for a person."""

    def __init__(self, message: str, *, fix: str, retry: Retry) -> None:
        """Keep the message and its remedy apart, so that each can be shown alone."""
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.retry = retry

    def __str__(self) -> str:
        """Message, then fix."""
        return f"{self.message}. Fix: {self.fix}"

    @property
    def exit_code(self) -> int:
        """3 where a retry may cure it, 4 where a person must."""
        return 4 if self.retry is Retry.AFTER_FIX else 3


class ConfigurationError(WalgateError):
    """Settings or arguments are wrong; `problems` has a line for each."""

    def __init__(self, problems: list[str], *, fix: str) -> None:
        """Report all problems at once."""
        super().__init__("; ".join(problems), fix=fix, retry=Retry.AFTER_FIX)
        self.problems = problems

    @property
    def exit_code(self) -> int:
        """2: wrong use."""
        return 2


class SourceError(WalgateError):
    """The PostgreSQL server refused, failed or went away."""


class SourceStopping(SourceError):
    """The server is up but takes no connections: it is shutting down or starting."""


class SourceSilent(SourceError):
    """The stream brought nothing for longer than the server was asked to be silent."""


class SlotLost(SourceError):
    """The slot is missing, invalidated, recreated, or ahead of staging."""


class SlotInUse(SourceError):
    """Another process consumes the slot."""


class WrongServer(SourceError):
    """The server behind the address does not have the history that staging holds."""


class StreamRefused(SourceError):
    """The server ended the stream, and will end it again until a person changes something."""


class SubscriptionChanged(SourceError):
    """The server sends other changes again than were staged, because the settings changed."""


class ProtocolError(WalgateError):
    """The replication stream broke its own rules."""


class MalformedMessage(ProtocolError):
    """The server's bytes do not form the message they claim to be."""

    def __init__(self, kind: str, *, offset: int, size: int, reason: str) -> None:
        """Name the message kind, where in it decoding stopped, and its size in bytes."""
        super().__init__(
            f"malformed {kind} message: {reason} at offset {offset} of {size} bytes",
            fix="restart capture; if it recurs, report the server version and the message kind",
            retry=Retry.LATER,
        )
        self.kind = kind
        self.offset = offset
        self.size = size


class UnexpectedMessage(ProtocolError):
    """A well-formed message at a moment when it may not come."""

    def __init__(self, state: str, kind: str) -> None:
        """Name the state of the receiver and the message kind."""
        super().__init__(
            f"unexpected {kind} message while {state}",
            fix="restart capture; if it recurs, report the server version and the message kind",
            retry=Retry.LATER,
        )
        self.state = state
        self.kind = kind


class StagingError(WalgateError):
    """The log could not be read or written."""


class MergeError(WalgateError):
    """The log could not be merged into a table."""


class LakeError(WalgateError):
    """The lake does not hold what was asked for."""
