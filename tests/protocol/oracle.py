"""Row messages decoded one by one, in plain Python: what the columnar decoder is judged by.

It imports nothing of ours. Written from the pages "Logical Replication Message Formats" and
"Streaming Replication Protocol" of the PostgreSQL manual.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Cell: TypeAlias = tuple[str, bytes]
Row: TypeAlias = dict[str, object]


class RefusedError(Exception):
    """The bytes are not a row message of an announced relation."""


@dataclass(frozen=True)
class Shape:
    """An announced relation: from which row on, and what of it a row needs."""

    first_row: int
    oid: int
    table: str
    version: int
    width: int


class Bytes:
    """Bytes, read from the front."""

    def __init__(self, content: bytes) -> None:
        """Start at the first byte."""
        self.left = content

    def take(self, size: int) -> bytes:
        """Give the next bytes, all of them or none."""
        if size > len(self.left):
            raise RefusedError
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def number(self, size: int) -> int:
        """Give the next bytes as a number."""
        return int.from_bytes(self.take(size), "big")


def decode(frames: Sequence[bytes], shapes: Sequence[Shape]) -> list[Row]:
    """Decode frames one by one, each by the last shape of its oid before it."""
    return [
        decode_row(frame, [shape for shape in shapes if shape.first_row <= row])
        for row, frame in enumerate(frames)
    ]


def decode_row(frame: bytes, shapes: Sequence[Shape]) -> Row:
    """Decode one frame by the last shape of its oid."""
    if frame[:1] != b"w":
        raise RefusedError
    message = frame[25:]
    reader = Bytes(message)
    operation = {b"I": "insert", b"U": "update", b"D": "delete"}.get(reader.take(1))
    oid = reader.number(4)
    fitting = [shape for shape in shapes if shape.oid == oid]
    if operation is None or not fitting:
        raise RefusedError
    shape = fitting[-1]
    old: list[Cell] | None = None
    new: list[Cell] | None = None
    kind = reader.take(1)
    if kind in (b"K", b"O") and operation != "insert":
        old = _read_tuple(reader, shape.width)
        if operation == "update":
            kind = reader.take(1)
    if operation != "delete":
        if kind != b"N":
            raise RefusedError
        new = _read_tuple(reader, shape.width)
    if reader.left or (old is None and new is None):
        raise RefusedError
    if new is not None and old is not None:
        new = [b if a[0] == "u" and b[0] == "t" else a for a, b in zip(new, old, strict=True)]
    row: Row = {"table": shape.table, "relation_version": shape.version, "op": operation}
    try:
        row["values"] = _texts(new)
        row["unchanged"] = [i for i, cell in enumerate(new or []) if cell[0] == "u"] or None
        row["old_values"] = _texts(old)
        row["detail"] = None
    except UnicodeDecodeError:
        detail = json.dumps({"reason": "not UTF-8", "message": message.hex()})
        row |= {"op": "undecoded", "values": None, "unchanged": None}
        row |= {"old_values": None, "detail": detail}
    return row


def _read_tuple(reader: Bytes, width: int) -> list[Cell]:
    if reader.number(2) != width:
        raise RefusedError
    cells = []
    for _ in range(width):
        kind = reader.take(1).decode("latin-1")
        if kind not in ("t", "n", "u"):
            raise RefusedError
        cells.append((kind, reader.take(reader.number(4)) if kind == "t" else b""))
    return cells


def _texts(cells: list[Cell] | None) -> list[str | None] | None:
    if cells is None:
        return None
    return [content.decode("utf-8") if kind == "t" else None for kind, content in cells]
