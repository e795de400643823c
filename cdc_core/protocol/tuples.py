"""Finds where each value of many row messages lies, column by column over all rows at once.

This module joins the frames and makes each value a *cell*: its kind, the position of its first
byte, and the position after its last byte, in the order of the stream. It neither copies nor reads
values. It checks all bounds before it uses them. It allocates nothing for columns that a message is
too short to hold.
Source: PostgreSQL documentation, "Logical Replication Message Formats": Insert, Update, Delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from cdc_core.errors import MalformedMessage, ProtocolError, Retry, UnexpectedMessage
from cdc_core.protocol.frames import HEADER_SIZE, XLOG_DATA

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Octets: TypeAlias = npt.NDArray[np.uint8]

INSERT, UPDATE, DELETE = b"IUD"
TEXT, NULL, UNCHANGED, BINARY = b"tnub"
_NEW, _OLD, _KEY = b"NOK"
_KIND_NAMES: Final = {INSERT: "Insert", UPDATE: "Update", DELETE: "Delete"}

# A row message begins with kind, relation oid, tuple kind, column count.
_PREFIX_SIZE = 8
# A second tuple begins with tuple kind, column count.
_TUPLE_PREFIX_SIZE = 3
# The length before a text value.
_LENGTH_SIZE = 4

# Every read of the joined frames takes eight bytes, even at the position after the last byte.
_PADDING = bytes(8)
# Postgres has no larger frame, and twice as much (as hex) still fits Arrow's 32-bit offsets.
_MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class RowMessages:
    """The joined frames; for each row, the begin, the end and the first fields of its message."""

    octets: Octets
    words: npt.NDArray[np.int64]
    begins: Integers
    ends: Integers
    kinds: Integers
    oids: Integers
    has_old: Flags
    has_new: Flags
    widths: Integers

    def kind_name(self, row: int) -> str:
        """Name the row's message kind as Postgres' documentation does."""
        return _KIND_NAMES.get(int(self.kinds[row]), f"0x{int(self.kinds[row]) & 255:02x}")

    def refuse(self, row: int, position: int, reason: str) -> MalformedMessage:
        """Make the error for a row that is malformed at a position of the joined frames."""
        begin, end = int(self.begins[row]), int(self.ends[row])
        kind, offset = self.kind_name(row), position - begin
        return MalformedMessage(kind, offset=offset, size=end - begin, reason=reason)


@dataclass(frozen=True, slots=True)
class Cells:
    """Kind and byte range of each value, in order; for each row, the first cell of each tuple.

    A range is two numbers of 32 bits: the low one is the position of the first byte, the high one
    the position after the last. Hosts are little-endian, as Arrow's columns are. So `spans`, read
    as numbers of 32 bits, is first, after, first, after, …
    """

    kinds: Octets
    spans: Integers
    old_firsts: Integers
    new_firsts: Integers


def join_messages(frames: Sequence[bytes | memoryview]) -> RowMessages:
    """Join whole frames of row messages and read the first fields of each message.

    Raises: MalformedMessage, UnexpectedMessage (not a row message), ProtocolError (over 1 GiB).
    """
    sizes = np.fromiter(map(len, frames), dtype=np.int64, count=len(frames))
    frame_ends = np.cumsum(sizes)
    if frame_ends[-1] > _MAX_BYTES:
        raise ProtocolError(
            f"cannot decode {len(frames)} row messages of {frame_ends[-1]} bytes at once: at most"
            f" {_MAX_BYTES} bytes fit",
            fix="report the server version and these numbers: Walgate decodes a large row alone,"
            " and no row of PostgreSQL is larger than this limit",
            retry=Retry.AFTER_FIX,
        )
    octets = np.frombuffer(b"".join((*frames, _PADDING)), dtype=np.uint8)
    # For each byte, the number in the eight bytes that begin with it.
    words = np.ndarray((len(octets) - 7,), dtype=">i8", buffer=octets, strides=(1,))
    starts = frame_ends - sizes
    begins = starts + HEADER_SIZE
    _check_frames(octets, starts, sizes)
    prefixes = words[begins].astype(np.int64)
    tuple_kinds = prefixes >> 16 & 0xFF
    kinds = prefixes >> 56
    messages = RowMessages(
        octets=octets,
        words=words,
        begins=begins,
        ends=frame_ends,
        kinds=kinds,
        oids=prefixes >> 24 & 0xFFFFFFFF,
        has_old=tuple_kinds != _NEW,
        has_new=kinds != DELETE,
        widths=prefixes & 0xFFFF,
    )
    _check_prefixes(messages, tuple_kinds)
    return messages


def walk_tuples(messages: RowMessages) -> Cells:
    """Find the cells of all tuples. Raises: MalformedMessage."""
    per_tuple = messages.widths
    counts = per_tuple * (messages.has_old.astype(np.int64) + messages.has_new)
    _check_room(messages, counts)
    firsts = np.cumsum(counts) - counts
    cells = Cells(
        kinds=np.full(int(counts.sum()), TEXT, dtype=np.uint8),
        spans=np.empty(int(counts.sum()), dtype=np.int64),
        old_firsts=firsts,
        new_firsts=firsts + per_tuple * messages.has_old,
    )
    positions = messages.begins + _PREFIX_SIZE
    olds = np.flatnonzero(messages.has_old)
    positions[olds] = _walk(messages, cells, olds, positions[olds], cells.old_firsts[olds])
    both = olds[messages.has_new[olds]]
    positions[both] = _enter_second_tuples(messages, both, positions[both])
    news = np.flatnonzero(messages.has_new)
    positions[news] = _walk(messages, cells, news, positions[news], cells.new_firsts[news])
    longer = positions != messages.ends
    if longer.any():
        row = int(longer.argmax())
        raise messages.refuse(row, int(positions[row]), "bytes left over")
    return cells


def _walk(
    messages: RowMessages, cells: Cells, rows: Integers, positions: Integers, firsts: Integers
) -> Integers:
    """Fill in the cells of one tuple of each row; return the positions after the tuples."""
    behind = positions.copy()
    # The tuples that are not at their end, by place in `rows`. Narrow tuples end first.
    places, at, slots = np.arange(len(rows)), positions, firsts
    column = 0
    for width in np.unique(messages.widths[rows]).tolist():
        here, limits = rows[places], messages.ends[rows[places]]
        while column < width:
            words = messages.words[at].astype(np.int64)
            kinds = words >> 56
            is_text = kinds == TEXT
            starts = at + 1 + _LENGTH_SIZE * is_text
            ends = starts + (words >> 24 & 0xFFFFFFFF) * is_text
            if (ends > limits).any() or not is_text.all():
                _check_values(messages, here, at, kinds, ends > limits)
                cells.kinds[slots] = kinds
            cells.spans[slots] = starts | ends << 32
            at, slots = ends, slots + 1
            column += 1
        behind[places] = at
        stays = messages.widths[here] > width
        places, at, slots = places[stays], at[stays], slots[stays]
    return behind


def _check_values(
    messages: RowMessages, rows: Integers, at: Integers, kinds: Integers, beyond: Flags
) -> None:
    """Refuse a value that ends after its message, or that is not text, null or unchanged."""
    if beyond.any():
        place = int(beyond.argmax())
        raise messages.refuse(int(rows[place]), int(at[place]), "value ends after its message")
    unknown = (kinds != TEXT) & (kinds != NULL) & (kinds != UNCHANGED)
    if unknown.any():
        place = int(unknown.argmax())
        reason = "binary value" if kinds[place] == BINARY else "unknown kind of value"
        raise messages.refuse(int(rows[place]), int(at[place]), reason)


def _enter_second_tuples(messages: RowMessages, rows: Integers, positions: Integers) -> Integers:
    """Check the prefix of the new tuple after each row's old one; return the positions after it."""
    behind = positions + _TUPLE_PREFIX_SIZE
    words = messages.words[positions].astype(np.int64)
    widths = words >> 40 & 0xFFFF
    wrong = (words >> 56 != _NEW) | (widths != messages.widths[rows])
    wrong |= behind > messages.ends[rows]
    if wrong.any():
        row = int(wrong.argmax())
        reason = "no new tuple of the relation's width"
        raise messages.refuse(int(rows[row]), int(positions[row]), reason)
    return behind


def _check_frames(octets: Octets, starts: Integers, sizes: Integers) -> None:
    """Refuse frames that are too short for a row message, or of another kind."""
    short = sizes < HEADER_SIZE + _PREFIX_SIZE
    if short.any():
        row = int(short.argmax())
        size = max(int(sizes[row]) - HEADER_SIZE, 0)
        kind = int(octets[starts[row] + HEADER_SIZE]) if size else -1
        name = _KIND_NAMES.get(kind, "row")
        raise MalformedMessage(name, offset=size, size=size, reason="message too short")
    strange = octets[starts] != XLOG_DATA
    if strange.any():
        row = int(strange.argmax())
        raise MalformedMessage(
            "frame", offset=0, size=int(sizes[row]), reason="not a frame of a message"
        )


def _check_prefixes(messages: RowMessages, tuple_kinds: Integers) -> None:
    """Refuse messages that are not row messages, and tuples that such a message cannot have."""
    is_insert, is_update = messages.kinds == INSERT, messages.kinds == UPDATE
    other = ~(is_insert | is_update | (messages.kinds == DELETE))
    if other.any():
        raise UnexpectedMessage("decoding rows", messages.kind_name(int(other.argmax())))
    is_new = tuple_kinds == _NEW
    is_old = (tuple_kinds == _OLD) | (tuple_kinds == _KEY)
    fits = np.where(is_insert, is_new, is_old | (is_update & is_new))
    if not fits.all():
        row = int(fits.argmin())
        raise messages.refuse(row, int(messages.begins[row]) + 5, "wrong kind of tuple")


def _check_room(messages: RowMessages, counts: Integers) -> None:
    """Refuse messages too short for a byte per column, before `walk_tuples` allocates for them."""
    both = messages.has_old & messages.has_new
    room = messages.ends - messages.begins - _PREFIX_SIZE - _TUPLE_PREFIX_SIZE * both
    cramped = counts > room
    if cramped.any():
        row = int(cramped.argmax())
        raise messages.refuse(row, int(messages.ends[row]), "message too short for its columns")
