"""Control messages: whole, cut at every byte, with bytes left over, and with impossible content."""

from __future__ import annotations

import struct

import pytest

from cdc_core.errors import MalformedMessage
from cdc_core.protocol.messages import (
    ROW_KINDS,
    AnnouncedColumn,
    Announcement,
    Begin,
    Commit,
    LogicalMessage,
    Message,
    Origin,
    StreamAbort,
    Truncate,
    TypeName,
    parse_message,
)
from cdc_core.vocabulary import Lsn, ReplicaIdentity, TableName
from tests.protocol import encoding

LSN = Lsn.parse("16/B374D848")
SECOND = 1_000_000
YEAR_2000 = 946_684_800_000_000

COLUMNS = [(1, b"id", 20, -1), (0, "größe".encode(), 1700, 1_179_656)]
RELATION = encoding.relation(4_000_000_000, b"public", b"T", b"d", COLUMNS)

MESSAGES: dict[str, tuple[bytes, Message]] = {
    "Begin": (
        encoding.begin(LSN, SECOND, 4_000_000_000),
        Begin(LSN, YEAR_2000 + SECOND, 4_000_000_000),
    ),
    "Commit": (
        encoding.commit(LSN, LSN + 48, -SECOND),
        Commit(LSN, Lsn(LSN + 48), YEAR_2000 - SECOND),
    ),
    "Relation": (
        RELATION,
        Announcement(
            4_000_000_000,
            TableName("public", "T"),
            ReplicaIdentity.DEFAULT,
            (
                AnnouncedColumn("id", 20, -1, in_identity=True),
                AnnouncedColumn("größe", 1700, 1_179_656, in_identity=False),
            ),
        ),
    ),
    "Relation without columns": (
        encoding.relation(1, b"", b"pg_class", b"n", []),
        Announcement(1, TableName("pg_catalog", "pg_class"), ReplicaIdentity.NOTHING, ()),
    ),
    "Truncate": (
        encoding.truncate([16385, 4_000_000_000], 3),
        Truncate((16385, 4_000_000_000), cascade=True, restart_identity=True),
    ),
    "Truncate of one": (
        encoding.truncate([1], 2),
        Truncate((1,), cascade=False, restart_identity=True),
    ),
    "Message": (
        encoding.logical_message(1, LSN, b"walgate", b"\0\xff{}"),
        LogicalMessage(transactional=True, lsn=LSN, prefix=b"walgate", content=b"\0\xff{}"),
    ),
    "empty Message": (
        encoding.logical_message(0, 0, b"", b""),
        LogicalMessage(transactional=False, lsn=Lsn(0), prefix=b"", content=b""),
    ),
    "Message of no encoding": (
        encoding.logical_message(1, LSN, b"\xc3", b"x"),
        LogicalMessage(transactional=True, lsn=LSN, prefix=b"\xc3", content=b"x"),
    ),
    "Origin": (encoding.frame(b"O" + struct.pack(">q", LSN) + b"node\0"), Origin(LSN, "node")),
    "Type": (
        encoding.frame(b"Y" + struct.pack(">I", 16400) + b"public\0mood\0"),
        TypeName(16400, "public", "mood"),
    ),
    "Stream Abort": (encoding.frame(b"A" + struct.pack(">II", 7, 8)), StreamAbort(7, 8)),
    "Stream Abort in parallel": (
        encoding.frame(b"A" + struct.pack(">IIqq", 7, 8, LSN, SECOND)),
        StreamAbort(7, 8),
    ),
}

# An abort without place and time is whole too.
CUTS = [
    (name, size)
    for name, (frame, _) in MESSAGES.items()
    for size in range(len(encoding.HEADER), len(frame))
    if (name, size) != ("Stream Abort in parallel", len(MESSAGES["Stream Abort"][0]))
]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_whole_message_is_read(name: str) -> None:
    frame, message = MESSAGES[name]
    assert parse_message(frame) == message
    assert parse_message(memoryview(frame)) == message


@pytest.mark.parametrize(("name", "size"), CUTS)
def test_a_message_cut_at_any_byte_is_malformed(name: str, size: int) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        parse_message(MESSAGES[name][0][:size])
    if size > len(encoding.HEADER):
        assert refusal.value.kind in name
        assert refusal.value.size == size - len(encoding.HEADER)
        assert refusal.value.offset <= refusal.value.size


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_left_over_are_malformed(name: str) -> None:
    frame = MESSAGES[name][0]
    for extra in (b"\0", b"\0" * 15, b"\0" * 17, frame):
        with pytest.raises(MalformedMessage) as refusal:
            parse_message(frame + extra)
        assert refusal.value.size == len(frame + extra) - len(encoding.HEADER)


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(b"BCRTMOYA")))
def test_a_message_of_another_kind_is_malformed(kind: int) -> None:
    with pytest.raises(MalformedMessage, match="unknown kind"):
        parse_message(encoding.frame(bytes([kind]) + bytes(40)))


def test_row_messages_are_known_by_their_kind() -> None:
    assert sorted(ROW_KINDS) == sorted(b"IUD")


@pytest.mark.parametrize(
    ("frame", "kind", "offset"),
    [
        (encoding.begin(-1, 0, 1), "Begin", 1),
        (encoding.begin(1, 2**63 - 1, 1), "Begin", 9),
        (encoding.begin(1, -(2**63), 1), "Begin", 9),
        (encoding.commit(1, -1, 1), "Commit", 10),
        (encoding.frame(b"C\1" + bytes(24)), "Commit", 1),
        (encoding.relation(1, b"s", b"t", b"x", []), "Relation", 9),
        (encoding.relation(1, b"s", b"t", b"\xff", []), "Relation", 9),
        (encoding.relation(1, b"s\xff", b"t", b"d", []), "Relation", 5),
        (encoding.relation(1, b"s", b"caf\xe9", b"d", []), "Relation", 7),
        (encoding.relation(1, b"s", b"t", b"d", [(2, b"id", 20, -1)]), "Relation", 12),
        (encoding.relation(1, b"s", b"t", b"d", [(0, b"\xed\xa0\x80", 20, -1)]), "Relation", 13),
        (encoding.truncate([1], 4), "Truncate", 5),
        (encoding.logical_message(2, 1, b"p", b""), "Message", 1),
        (encoding.logical_message(1, -1, b"p", b""), "Message", 2),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_impossible_content_is_malformed_at_its_place(frame: bytes, kind: str, offset: int) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        parse_message(frame)
    assert (refusal.value.kind, refusal.value.offset) == (kind, offset)


@pytest.mark.parametrize(
    "message",
    [
        b"T" + struct.pack(">IB", 2**32 - 1, 0) + bytes(16),
        b"M" + struct.pack(">Bq", 1, 1) + b"p\0" + struct.pack(">I", 2**31 - 1) + b"short",
        b"R" + struct.pack(">I", 1) + b"s\0t\0d" + struct.pack(">H", 2**16 - 1) + bytes(30),
    ],
    ids=["oids", "content", "columns"],
)
def test_a_count_beyond_the_message_is_malformed(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_message(encoding.frame(message))


def test_an_error_names_kind_place_and_size_but_no_content() -> None:
    frame = encoding.relation(1, b"s", b"canary\xff", b"d", [])
    with pytest.raises(MalformedMessage) as refusal:
        parse_message(frame)
    expected = (
        f"malformed Relation message: string is not UTF-8 at offset 7 of {len(frame) - 25} bytes"
    )
    assert refusal.value.message == expected
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__


@pytest.mark.parametrize("flags", [0, 1])
def test_of_a_message_larger_than_any_of_ours_only_the_head_is_read(flags: int) -> None:
    frame = encoding.logical_message(flags, LSN, b"walgate", b"[" * (2 << 20))
    assert parse_message(frame) == LogicalMessage(bool(flags), LSN, b"walgate", b"")


def test_a_prefix_larger_than_any_message_of_ours_is_not_ours() -> None:
    frame = encoding.logical_message(1, LSN, b"walgate" * (1 << 18), b"{}")
    assert parse_message(frame) == LogicalMessage(
        transactional=True, lsn=LSN, prefix=b"", content=b""
    )
