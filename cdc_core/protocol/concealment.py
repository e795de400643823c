"""Conceals columns from the log: leaves them out, or replaces their texts by a keyed hash.

Walgate rewrites a row message of such a table before decoding: it removes the excluded columns, and
puts hashes in place of texts. So no later step has concealed values, not even the one that keeps an
undecodable message as it came. This costs some microseconds a row, for these tables only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from cdc_core.errors import MalformedMessage
from cdc_core.protocol.frames import HEADER_SIZE
from cdc_core.protocol.tuples import NULL, TEXT, UNCHANGED
from cdc_core.vocabulary import Column, Relation

# Kind and oid; then each tuple's kind and column count; then in a text value its kind and length.
_OID_START, _TUPLES_START = HEADER_SIZE + 1, HEADER_SIZE + 5
_TUPLE_PREFIX_SIZE, _TEXT_PREFIX_SIZE = 3, 5
# Hexadecimal digits of SHA-256.
_HASH_SIZE = 64
_HASH_PREFIX = bytes([TEXT]) + _HASH_SIZE.to_bytes(4, "big")
# The oid of `text`, the type of every hash.
_TEXT_OID = 25
# The HMAC of this constant identifies a key. Half of its digits are enough to distinguish keys.
_MARKED, _MARK_SIZE = b"walgate: the mark of a hash key", 32


class Treatment(Enum):
    """What Walgate does with a column."""

    KEEP = "keep"
    DROP = "drop"
    HASH = "hash"


@dataclass(frozen=True, slots=True)
class Concealment:
    """The treatment of each column, in the order of the stream, and the key of the hashes."""

    treatments: tuple[Treatment, ...]
    key: bytes = field(repr=False)

    def hash_text(self, text: bytes) -> bytes:
        """HMAC-SHA256 of a text, in hexadecimal: equal texts have equal hashes."""
        return hmac.digest(self.key, text, "sha256").hex().encode("ascii")

    def conceal_relation(self, relation: Relation) -> Relation:
        """The relation as the log sees it."""
        pairs = zip(relation.columns, self.treatments, strict=True)
        mark = mark_key(self.key)
        columns = [
            self._hash_column(column, mark) if treatment is Treatment.HASH else column
            for column, treatment in pairs
            if treatment is not Treatment.DROP
        ]
        dropped = [
            number
            for index, treatment in enumerate(self.treatments)
            if treatment is Treatment.DROP
            for number in _find_numbers(relation, index)
        ]
        left_out = tuple(sorted({*relation.left_out, *dropped}))
        return replace(relation, columns=tuple(columns), left_out=left_out)

    def conceal_message(self, frame: bytes | memoryview) -> bytes:
        """The frame of a row message with its tuples concealed. Raises: MalformedMessage."""
        parts = [frame[:_TUPLES_START]]
        width = len(self.treatments) - self.treatments.count(Treatment.DROP)
        count = width.to_bytes(2, "big")
        position = _TUPLES_START
        while position < len(frame):
            values = position + _TUPLE_PREFIX_SIZE
            if int.from_bytes(frame[position + 1 : values], "big") != len(self.treatments):
                raise _refuse(frame, position, "its number of columns is not the announced one")
            parts += (frame[position : position + 1], count)
            position = values
            for treatment in self.treatments:
                end = _find_end(frame, position)
                if treatment is Treatment.KEEP:
                    parts.append(frame[position:end])
                elif treatment is Treatment.HASH and frame[position] == TEXT:
                    text = bytes(frame[position + _TEXT_PREFIX_SIZE : end])
                    parts += (_HASH_PREFIX, self.hash_text(text))
                elif treatment is Treatment.HASH:
                    parts.append(frame[position:end])
                position = end
        return b"".join(parts)

    def _hash_column(self, column: Column, mark: str) -> Column:
        missing = column.missing_value
        return replace(
            column,
            type_oid=_TEXT_OID,
            type_modifier=-1,
            type_name="text",
            base_oid=None,
            base_modifier=-1,
            missing_value=None if missing is None else self.hash_text(missing.encode()).decode(),
            hashed_by=mark,
        )


def _find_numbers(relation: Relation, index: int) -> Sequence[int]:
    """The attnum of a column; if the catalog no longer shows it, every attnum that it may have had.

    The server sends columns in the order of their attnums, and never uses an attnum twice. So the
    result has no attnum of a column that is added later. If the table itself is gone, the result is
    0, which means any attnum.
    """
    numbers = [column.attnum for column in relation.columns]
    if (own := numbers[index]) is not None:
        return [own]
    low = max((number for number in numbers[:index] if number is not None), default=0)
    above = min((number for number in numbers[index:] if number is not None), default=None)
    last = relation.width if above is None else above - 1
    return [0] if last is None else range(low + 1, last + 1)


def mark_key(key: bytes) -> str:
    """A fingerprint that distinguishes hash keys, and shows nothing else about the key."""
    return hmac.digest(key, _MARKED, "sha256").hex()[:_MARK_SIZE]


# Gives the concealment of a relation; None if it has none. Raises: ConfigurationError.
Conceal: TypeAlias = Callable[[Relation], Concealment | None]


def read_oid(frame: bytes | memoryview) -> int:
    """The oid of a row message's relation. For a message that is too short, it has no meaning."""
    return int.from_bytes(frame[_OID_START:_TUPLES_START], "big")


def conceal_messages(
    frames: Sequence[bytes | memoryview], rules: Sequence[tuple[int, int, Concealment | None]]
) -> list[bytes | memoryview]:
    """Conceal each frame by the last rule of its oid that begins at or before its row.

    A rule is its first row, the oid, and the concealment; None leaves the frames as they are.
    """
    by_oid: dict[int, list[tuple[int, Concealment | None]]] = {}
    for first_row, oid, concealment in rules:
        by_oid.setdefault(oid, []).append((first_row, concealment))
    open_oids = {oid for oid, known in by_oid.items() if all(rule is None for _, rule in known)}
    concealed: list[bytes | memoryview] = []
    for row, frame in enumerate(frames):
        oid = read_oid(frame)
        if oid not in open_oids:
            known = [rule for first_row, rule in by_oid.get(oid, ()) if first_row <= row]
            if known and known[-1] is not None:
                concealed.append(known[-1].conceal_message(frame))
                continue
        concealed.append(frame)
    return concealed


def _find_end(frame: bytes | memoryview, position: int) -> int:
    """The position after the value that begins at `position`. Raises: MalformedMessage."""
    kind = frame[position] if position < len(frame) else None
    if kind in (NULL, UNCHANGED):
        return position + 1
    start = position + _TEXT_PREFIX_SIZE
    end = start + int.from_bytes(frame[position + 1 : start], "big")
    if kind != TEXT or start > len(frame) or end > len(frame):
        raise _refuse(frame, position, "value is not text, null or unchanged")
    return end


def _refuse(frame: bytes | memoryview, position: int, reason: str) -> MalformedMessage:
    return MalformedMessage(
        "row", offset=position - HEADER_SIZE, size=len(frame) - HEADER_SIZE, reason=reason
    )
