"""Control messages of pgoutput, protocol version 1, as values.

This module does not read row messages (`ROW_KINDS`): `rows` decodes them a batch at a time. Reading
is strict: a missing byte, an extra byte, an unknown kind or a name that is not UTF-8 is a
`MalformedMessage`, whose offset and size count from the message's kind byte. No allocation is
larger than the message.
Source: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cdc_core.errors import MalformedMessage
from cdc_core.protocol.flat_json import MAX_BYTES
from cdc_core.protocol.frames import HEADER_SIZE, POSTGRES_EPOCH_US, XLOG_DATA, refused_frame
from cdc_core.vocabulary import Lsn, ReplicaIdentity, TableName

ROW_KINDS = frozenset(b"IUD")

# 0001-01-01 to 9999-12-31, in microseconds since 1970: what a calendar date can show.
_EARLIEST_US = -62_135_596_800_000_000
_LATEST_US = 253_402_300_799_999_999

_BYTE = struct.Struct(">B")
_INT16 = struct.Struct(">H")
_INT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_TYPE = struct.Struct(">Ii")
# Whole frames: kind of frame, kind of message, then its fields.
_BEGIN_FRAME = struct.Struct(">B24xBqqI")
_COMMIT_FRAME = struct.Struct(">B24xBBqqq")
_BEGIN, _COMMIT, _MESSAGE = b"BCM"
# Bytes. No mark is larger. A larger logical message may have 1 GiB, so only its head is read.
_MAX_COPIED = MAX_BYTES + 64


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts. Its commit LSN is already known."""

    commit_lsn: Lsn
    committed_at_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is complete. `end_lsn` is the first byte after its commit record."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at_us: int


@dataclass(frozen=True, slots=True)
class AnnouncedColumn:
    """A column as the stream announces it."""

    name: str
    type_oid: int
    type_modifier: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Announcement:
    """The columns and replica identity of a table, for its rows from here on."""

    oid: int
    table: TableName
    identity: ReplicaIdentity
    columns: tuple[AnnouncedColumn, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """One statement removed all rows of these tables."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that somebody wrote with `pg_logical_emit_message`.

    The prefix is bytes, because its encoding is not known. If a message is larger than any mark,
    its content is not copied, and `content` is empty.
    """

    transactional: bool
    lsn: Lsn
    prefix: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came to the source by replication."""

    lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A transaction was aborted and never sent. PostgreSQL 18 reports it without a request."""

    xid: int
    subxid: int


Message: TypeAlias = (
    Begin | Commit | Announcement | Truncate | LogicalMessage | Origin | TypeName | StreamAbort
)


def parse_message(frame: bytes | memoryview) -> Message:
    """Read the control message of a whole frame. Raises: MalformedMessage."""
    bound = _read_bound(frame)
    if bound is not None:
        return bound
    if len(frame) <= HEADER_SIZE or frame[0] != XLOG_DATA:
        raise refused_frame(frame)
    message = bytes(frame[HEADER_SIZE : HEADER_SIZE + _MAX_COPIED])
    if len(frame) > HEADER_SIZE + _MAX_COPIED:
        if message[0] == _MESSAGE:
            return _parse_large_message(message)
        message = bytes(frame[HEADER_SIZE:])
    parser = _PARSERS.get(message[0])
    if parser is None:
        kind = f"0x{message[0]:02x}"
        raise MalformedMessage(kind, offset=0, size=len(message), reason="unknown kind")
    name, parse = parser
    reader = _Reader(name, message)
    parsed = parse(reader)
    reader.finish()
    return parsed


def _read_bound(frame: bytes | memoryview) -> Begin | Commit | None:
    """Read a well-formed Begin or Commit in one step, as every transaction has both; else None."""
    size = len(frame)
    if size == _BEGIN_FRAME.size:
        data, kind, commit_lsn, at, xid = _BEGIN_FRAME.unpack(frame)
        at += POSTGRES_EPOCH_US
        is_sound = data == XLOG_DATA and kind == _BEGIN and commit_lsn >= 0
        if is_sound and _EARLIEST_US <= at <= _LATEST_US:
            return Begin(Lsn(commit_lsn), at, xid)
    elif size == _COMMIT_FRAME.size:
        data, kind, flags, commit_lsn, end_lsn, at = _COMMIT_FRAME.unpack(frame)
        at += POSTGRES_EPOCH_US
        is_sound = data == XLOG_DATA and kind == _COMMIT and not flags
        if is_sound and min(commit_lsn, end_lsn) >= 0 and _EARLIEST_US <= at <= _LATEST_US:
            return Commit(Lsn(commit_lsn), Lsn(end_lsn), at)
    return None


class _Reader:
    """A message, and the offset that reading has reached in it."""

    __slots__ = ("kind", "message", "offset")

    def __init__(self, kind: str, message: bytes) -> None:
        """Start after the kind byte."""
        self.kind = kind
        self.message = message
        self.offset = 1

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return len(self.message) - self.offset

    def refuse(self, reason: str, *, offset: int | None = None) -> MalformedMessage:
        """Make the error for the reached offset, or for the given one."""
        stop = self.offset if offset is None else offset
        return MalformedMessage(self.kind, offset=stop, size=len(self.message), reason=reason)

    def read(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the next fields."""
        if self.remaining < layout.size:
            raise self.refuse(f"{layout.size} bytes expected, {self.remaining} left")
        fields = layout.unpack_from(self.message, self.offset)
        self.offset += layout.size
        return fields

    def read_flags(self, known: int) -> int:
        """Read a byte in which only `known` bits may be set."""
        flags: int = self.read(_BYTE)[0]
        if flags & ~known:
            raise self.refuse(f"unknown flags 0x{flags:02x}", offset=self.offset - 1)
        return flags

    def read_int16(self) -> int:
        """Read an unsigned 16-bit integer."""
        value: int = self.read(_INT16)[0]
        return value

    def read_int32(self) -> int:
        """Read an unsigned 32-bit integer: an oid, an xid, a size."""
        value: int = self.read(_INT32)[0]
        return value

    def read_lsn(self) -> Lsn:
        """Read a WAL position."""
        value: int = self.read(_INT64)[0]
        if value < 0:
            raise self.refuse("LSN out of range", offset=self.offset - _INT64.size)
        return Lsn(value)

    def read_time(self) -> int:
        """Read a moment in microseconds since 1970 UTC."""
        value: int = self.read(_INT64)[0] + POSTGRES_EPOCH_US
        if not _EARLIEST_US <= value <= _LATEST_US:
            raise self.refuse("time out of range", offset=self.offset - _INT64.size)
        return value

    def read_text(self) -> bytes:
        """Read the bytes of a string up to its zero byte, whatever their encoding."""
        end = self.message.find(b"\0", self.offset)
        if end < 0:
            raise self.refuse("string without end")
        text = self.message[self.offset : end]
        self.offset = end + 1
        return text

    def read_name(self) -> str:
        """Read a UTF-8 string up to its zero byte."""
        begin = self.offset
        try:
            return self.read_text().decode("utf-8")
        except UnicodeDecodeError:
            # Not chained: the decoding error holds the bytes.
            raise self.refuse("string is not UTF-8", offset=begin) from None

    def read_schema(self) -> str:
        """Read a schema's name. The stream sends pg_catalog as an empty name."""
        return self.read_name() or "pg_catalog"

    def read_identity(self) -> ReplicaIdentity:
        """Read the letter of a replica identity."""
        letter = chr(self.read(_BYTE)[0])
        try:
            return ReplicaIdentity(letter)
        except ValueError as exc:
            raise self.refuse("unknown replica identity", offset=self.offset - 1) from exc

    def read_bytes(self, size: int) -> bytes:
        """Read the next `size` bytes."""
        if self.remaining < size:
            raise self.refuse(f"{size} bytes expected, {self.remaining} left")
        content = self.message[self.offset : self.offset + size]
        self.offset += size
        return content

    def finish(self) -> None:
        """Refuse the message if it has more bytes."""
        if self.remaining:
            raise self.refuse(f"{self.remaining} bytes left over")


def _parse_begin(reader: _Reader) -> Begin:
    return Begin(reader.read_lsn(), reader.read_time(), reader.read_int32())


def _parse_commit(reader: _Reader) -> Commit:
    reader.read_flags(0)
    return Commit(reader.read_lsn(), reader.read_lsn(), reader.read_time())


def _parse_announcement(reader: _Reader) -> Announcement:
    oid = reader.read_int32()
    table = TableName(reader.read_schema(), reader.read_name())
    identity = reader.read_identity()
    columns = tuple(_parse_column(reader) for _ in range(reader.read_int16()))
    return Announcement(oid, table, identity, columns)


def _parse_column(reader: _Reader) -> AnnouncedColumn:
    in_identity = bool(reader.read_flags(1))
    name = reader.read_name()
    type_oid, type_modifier = reader.read(_TYPE)
    return AnnouncedColumn(name, type_oid, type_modifier, in_identity)


def _parse_truncate(reader: _Reader) -> Truncate:
    count = reader.read_int32()
    flags = reader.read_flags(3)
    oids = struct.iter_unpack(">I", reader.read_bytes(count * _INT32.size))
    cascade, restart_identity = bool(flags & 1), bool(flags & 2)
    return Truncate(tuple(oid for (oid,) in oids), cascade, restart_identity)


def _parse_logical_message(reader: _Reader) -> LogicalMessage:
    transactional = bool(reader.read_flags(1))
    lsn = reader.read_lsn()
    prefix = reader.read_text()
    return LogicalMessage(transactional, lsn, prefix, reader.read_bytes(reader.read_int32()))


def _parse_large_message(head: bytes) -> LogicalMessage:
    reader = _Reader("Message", head)
    transactional, lsn = bool(reader.read_flags(1)), reader.read_lsn()
    # A prefix that does not end within the head is not ours.
    prefix = reader.read_text() if b"\0" in head[reader.offset :] else b""
    return LogicalMessage(transactional, lsn, prefix, b"")


def _parse_origin(reader: _Reader) -> Origin:
    return Origin(reader.read_lsn(), reader.read_name())


def _parse_type(reader: _Reader) -> TypeName:
    return TypeName(reader.read_int32(), reader.read_schema(), reader.read_name())


def _parse_stream_abort(reader: _Reader) -> StreamAbort:
    abort = StreamAbort(reader.read_int32(), reader.read_int32())
    # With parallel streaming, the server adds the LSN and the time of the abort.
    if reader.remaining:
        reader.read_lsn()
        reader.read_time()
    return abort


_PARSERS: dict[int, tuple[str, Callable[[_Reader], Message]]] = {
    _BEGIN: ("Begin", _parse_begin),
    _COMMIT: ("Commit", _parse_commit),
    ord("R"): ("Relation", _parse_announcement),
    ord("T"): ("Truncate", _parse_truncate),
    _MESSAGE: ("Message", _parse_logical_message),
    ord("O"): ("Origin", _parse_origin),
    ord("Y"): ("Type", _parse_type),
    ord("A"): ("Stream Abort", _parse_stream_abort),
}
