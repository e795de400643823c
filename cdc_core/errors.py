"""Every error that Walgate raises on purpose.

The message says what happened, to what, what was expected and what was found. `fix` says in one
sentence what to do. Neither ever has a row value or a secret. Orchestration reads only `retry` to
choose between another try and a person. The exit code comes from `retry`, too.
"""

from __future__ import annotations

from enum import Enum

# The fix if the slot and the log no longer belong together.
RECOVER = (
    "run `walgate recover` to see what it would do, and with --yes to begin a new epoch, in which"
    " Walgate reads every table again"
)


class Retry(Enum):
    """When the same call may succeed."""

    LATER = "later"
    AFTER_FIX = "after_fix"


class WalgateError(Exception):
    """What happened, with the fix; `str()` is one line for a person."""

    def __init__(self, message: str, *, fix: str, retry: Retry) -> None:
        """Keep the message and the fix apart, so that each can be shown alone."""
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.retry = retry

    def __str__(self) -> str:
        """Message, then fix."""
        return f"{self.message}. Fix: {self.fix}"

    @property
    def exit_code(self) -> int:
        """3 if a retry may succeed, 4 if a person must act first."""
        return 4 if self.retry is Retry.AFTER_FIX else 3


class ConfigurationError(WalgateError):
    """Settings or arguments are wrong; `problems` has a line for each."""

    def __init__(self, problems: list[str], *, fix: str) -> None:
        """Report all problems at once."""
        super().__init__("; ".join(problems), fix=fix, retry=Retry.AFTER_FIX)
        self.problems = problems

    @property
    def exit_code(self) -> int:
        """2, for wrong settings or arguments."""
        return 2


class SourceError(WalgateError):
    """The PostgreSQL server refused, failed or went away."""


class SourceStopping(SourceError):
    """The server is up but takes no connections: it is shutting down or starting."""


class SourceSilent(SourceError):
    """The stream brought nothing for longer than the server may be silent."""


class SlotLost(SourceError):
    """The slot is missing, invalidated, recreated, or ahead of staging."""


class SlotInUse(SourceError):
    """Another process consumes the slot."""


class WrongServer(SourceError):
    """The server behind the address does not have the history that staging holds."""


class StreamRefused(SourceError):
    """The server ended the stream, and will end it again until a person changes something."""


class SubscriptionChanged(SourceError):
    """Settings changed, so the changes that the server sends again differ from the staged ones."""


class ProtocolError(WalgateError):
    """The replication stream broke its own rules."""


class MalformedMessage(ProtocolError):
    """The server's bytes do not form the message they claim to be."""

    def __init__(self, kind: str, *, offset: int, size: int, reason: str) -> None:
        """Name the message kind, the offset at which decoding stopped, and the size in bytes."""
        super().__init__(
            f"malformed {kind} message: {reason} at offset {offset} of {size} bytes",
            fix="restart capture; if it recurs, report the server version and the message kind",
            retry=Retry.LATER,
        )
        self.kind = kind
        self.offset = offset
        self.size = size


class UnexpectedMessage(ProtocolError):
    """A well-formed message came at a moment when it is not allowed."""

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
    """The lake does not have what the caller asked for."""
