"""Frames of the replication stream: what COPY BOTH carries, and the status we send back.

A frame is a keepalive, or a header of 25 bytes and one pgoutput message. libpq gives whole frames.
This module refuses LSNs beyond 63 bits and frames of any other form.
Source: PostgreSQL documentation, "Streaming Replication Protocol".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cdc_core.errors import MalformedMessage
from cdc_core.vocabulary import Lsn

KEEPALIVE = ord("k")
XLOG_DATA = ord("w")

# 'w', start LSN, end LSN, server time; the message follows.
HEADER_SIZE = 25

# Postgres counts microseconds from 2000-01-01, Unix from 1970-01-01.
POSTGRES_EPOCH_US = 946_684_800_000_000

_KEEPALIVE = struct.Struct(">cqqB")
_STATUS = struct.Struct(">cqqqqB")


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server's WAL end, and whether it wants a status at once."""

    wal_end: Lsn
    reply_requested: bool


def refused_frame(frame: bytes | memoryview) -> MalformedMessage:
    """Make the error for a frame that is neither a keepalive nor a header with a message."""
    size = len(frame)
    if not size:
        return MalformedMessage("frame", offset=0, size=0, reason="no kind byte")
    if frame[0] != XLOG_DATA:
        return MalformedMessage(
            "frame", offset=0, size=size, reason=f"unknown frame kind 0x{frame[0]:02x}"
        )
    return MalformedMessage("frame", offset=size, size=size, reason="no message behind the header")


def parse_keepalive(frame: bytes | memoryview) -> Keepalive:
    """Read a whole keepalive frame. Raises: MalformedMessage."""
    size = len(frame)
    if size != _KEEPALIVE.size:
        stop = min(size, _KEEPALIVE.size)
        reason = f"expected {_KEEPALIVE.size} bytes"
        raise MalformedMessage("keepalive", offset=stop, size=size, reason=reason)
    kind, wal_end, _, reply_requested = _KEEPALIVE.unpack(frame)
    if kind[0] != KEEPALIVE:
        raise MalformedMessage("keepalive", offset=0, size=size, reason="not a keepalive")
    if wal_end < 0:
        raise MalformedMessage("keepalive", offset=1, size=size, reason="LSN out of range")
    if reply_requested > 1:
        raise MalformedMessage("keepalive", offset=17, size=size, reason="flag is not 0 or 1")
    return Keepalive(wal_end=Lsn(wal_end), reply_requested=bool(reply_requested))


def format_status(flushed: Lsn, *, unix_us: int, reply_requested: bool = False) -> bytes:
    """Make the standby status that confirms `flushed` as written, flushed and applied."""
    return _STATUS.pack(
        b"r", flushed, flushed, flushed, unix_us - POSTGRES_EPOCH_US, reply_requested
    )
