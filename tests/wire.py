"""Reading the PostgreSQL wire as a bystander: frames, and the status updates inside them.

Written for the tests alone, from the protocol's page of the PostgreSQL manual; it imports nothing
of ours, because it judges it. Only the head of a message is kept, so a long stream stays small.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

HEAD_BYTES = 64
_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!cQQQqB")
_ENCRYPTION_REQUESTS = frozenset({80877103, 80877104})  # SSLRequest, GSSENCRequest.


class Direction(Enum):
    """Which end sent it."""

    FROM_CLIENT = "from client"
    FROM_SERVER = "from server"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: its type byte (empty for a start-up packet), body size and the body's head."""

    at: float
    direction: Direction
    kind: bytes
    size: int
    head: bytes


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """What a standby told the server: LSNs as integers; `at` in seconds since 1970."""

    at: float
    written: int
    flushed: int
    applied: int
    wants_reply: bool


def parse_status(frame: Frame) -> StatusUpdate | None:
    """Give the status update that a frame carries, if it does."""
    if frame.kind != b"d" or frame.head[:1] != b"r" or frame.size < _STATUS.size:
        return None
    _, written, flushed, applied, _, wants_reply = _STATUS.unpack_from(frame.head)
    return StatusUpdate(frame.at, written, flushed, applied, bool(wants_reply))


class FrameReader:
    """Frames of one direction of one connection, from bytes cut anywhere."""

    def __init__(self, direction: Direction) -> None:
        """Begin where the connection begins."""
        self._direction = direction
        self._buffer = bytearray()
        self._skip = 0
        self._is_starting = direction is Direction.FROM_CLIENT
        self.encryption_requests = 0

    def expect_encryption_answer(self) -> None:
        """Know that the server's next byte answers an encryption request and is no message."""
        self._skip += 1

    def read(self, data: bytes, at: float) -> list[Frame]:
        """Take bytes and give the frames whose head is complete."""
        self._buffer += data
        frames = []
        while self._drop_skipped() and (frame := self._next(at)):
            frames.append(frame)
        return frames

    def _drop_skipped(self) -> bool:
        dropped = min(self._skip, len(self._buffer))
        del self._buffer[:dropped]
        self._skip -= dropped
        return self._skip == 0

    def _next(self, at: float) -> Frame | None:
        prefix = 0 if self._is_starting else 1
        if len(self._buffer) < prefix + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, prefix)
        size = length - _LENGTH.size
        start = prefix + _LENGTH.size
        head = bytes(self._buffer[start : start + min(size, HEAD_BYTES)])
        if len(head) < min(size, HEAD_BYTES):
            return None
        kind = bytes(self._buffer[:prefix])
        self._skip = start + size
        if self._is_starting:
            self._note_start(head)
        return Frame(at, self._direction, kind, size, head)

    def _note_start(self, head: bytes) -> None:
        if len(head) == _LENGTH.size and _LENGTH.unpack(head)[0] in _ENCRYPTION_REQUESTS:
            self.encryption_requests += 1
        else:
            self._is_starting = False
