"""Frames as a server would send them, from plain values; imports nothing of ours."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence


class Unchanged:
    """A TOAST value that the server does not send again."""


UNCHANGED: Final = Unchanged()
HEADER: Final = b"w" + struct.pack(">qqq", 0x16_B374_D848, 0x16_B374_D848, 700_000_000_000_000)

Value: TypeAlias = str | bytes | Unchanged | None


def frame(message: bytes) -> bytes:
    """Put the header of 25 bytes before a message."""
    return HEADER + message


def insert(oid: int, new: Sequence[Value]) -> bytes:
    """Make the frame of an Insert."""
    return frame(b"I" + _oid(oid) + row_tuple(b"N", new))


def update(
    oid: int, new: Sequence[Value], old: Sequence[Value] | None = None, kind: bytes = b"O"
) -> bytes:
    """Make the frame of an Update, with the old tuple if it is given."""
    before = b"" if old is None else row_tuple(kind, old)
    return frame(b"U" + _oid(oid) + before + row_tuple(b"N", new))


def delete(oid: int, old: Sequence[Value], kind: bytes = b"K") -> bytes:
    """Make the frame of a Delete."""
    return frame(b"D" + _oid(oid) + row_tuple(kind, old))


def row_tuple(kind: bytes, values: Sequence[Value]) -> bytes:
    """Make a tuple behind its kind byte."""
    return kind + struct.pack(">H", len(values)) + b"".join(map(_value, values))


def begin(commit_lsn: int, committed_at: int, xid: int) -> bytes:
    """Make the frame of a Begin; time in microseconds since 2000-01-01."""
    return frame(b"B" + struct.pack(">qqI", commit_lsn, committed_at, xid))


def commit(commit_lsn: int, end_lsn: int, committed_at: int) -> bytes:
    """Make the frame of a Commit."""
    return frame(b"C" + struct.pack(">Bqqq", 0, commit_lsn, end_lsn, committed_at))


def relation(
    oid: int,
    schema: bytes,
    name: bytes,
    identity: bytes,
    columns: Sequence[tuple[int, bytes, int, int]],
) -> bytes:
    """Make the frame of a Relation; columns are flags, name, type oid, type modifier."""
    body = b"".join(
        struct.pack(">B", flags) + column + b"\0" + struct.pack(">Ii", type_oid, modifier)
        for flags, column, type_oid, modifier in columns
    )
    names = schema + b"\0" + name + b"\0" + identity
    return frame(b"R" + _oid(oid) + names + struct.pack(">H", len(columns)) + body)


def truncate(oids: Sequence[int], flags: int) -> bytes:
    """Make the frame of a Truncate."""
    return frame(b"T" + struct.pack(">IB", len(oids), flags) + b"".join(map(_oid, oids)))


def logical_message(flags: int, lsn: int, prefix: bytes, content: bytes) -> bytes:
    """Make the frame of a Message."""
    sizes = struct.pack(">I", len(content))
    return frame(b"M" + struct.pack(">Bq", flags, lsn) + prefix + b"\0" + sizes + content)


def keepalive(wal_end: int, reply_requested: int) -> bytes:
    """Make a keepalive."""
    return b"k" + struct.pack(">qqB", wal_end, 700_000_000_000_000, reply_requested)


def _oid(oid: int) -> bytes:
    return struct.pack(">I", oid)


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Unchanged):
        return b"u"
    text = value.encode() if isinstance(value, str) else value
    return b"t" + struct.pack(">I", len(text)) + text
