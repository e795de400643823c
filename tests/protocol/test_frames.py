"""Frames: keepalives in, status out."""

from __future__ import annotations

import struct

import pytest

from cdc_core.errors import MalformedMessage
from cdc_core.protocol.frames import Keepalive, format_status, parse_keepalive
from cdc_core.protocol.messages import parse_message
from cdc_core.vocabulary import Lsn
from tests.protocol import encoding

LSN = Lsn.parse("16/B374D848")
KEEPALIVE = encoding.keepalive(LSN, 1)


def test_a_keepalive_tells_the_wal_end_and_whether_a_reply_is_wanted() -> None:
    assert parse_keepalive(KEEPALIVE) == Keepalive(LSN, reply_requested=True)
    quiet = memoryview(encoding.keepalive(0, 0))
    assert parse_keepalive(quiet) == Keepalive(Lsn(0), reply_requested=False)


@pytest.mark.parametrize("size", range(len(KEEPALIVE)))
def test_a_keepalive_cut_anywhere_is_malformed(size: int) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        parse_keepalive(KEEPALIVE[:size])
    assert (refusal.value.kind, refusal.value.offset, refusal.value.size) == (
        "keepalive",
        size,
        size,
    )


@pytest.mark.parametrize(
    ("frame", "offset"),
    [
        (KEEPALIVE + b"\0", 18),
        (b"w" + KEEPALIVE[1:], 0),
        (encoding.keepalive(-1, 0), 1),
        (encoding.keepalive(0, 2), 17),
    ],
    ids=["too long", "of another kind", "LSN beyond 63 bits", "unknown flag"],
)
def test_a_keepalive_is_read_strictly(frame: bytes, offset: int) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        parse_keepalive(frame)
    assert (refusal.value.offset, refusal.value.size) == (offset, len(frame))


def test_a_status_confirms_one_lsn_as_written_flushed_and_applied() -> None:
    one_second_into_2000 = 946_684_801_000_000
    status = format_status(LSN, unix_us=one_second_into_2000)
    assert struct.unpack(">cQQQqB", status) == (b"r", LSN, LSN, LSN, 1_000_000, 0)
    assert len(status) == 34
    assert format_status(LSN, unix_us=0, reply_requested=True)[-1] == 1


@pytest.mark.parametrize(
    ("frame", "offset"),
    [(b"", 0), (b"z" * 30, 0), (encoding.HEADER, 25), (b"w", 1)],
    ids=["empty", "of another kind", "header only", "one byte"],
)
def test_a_frame_without_a_message_is_malformed(frame: bytes, offset: int) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        parse_message(frame)
    assert refusal.value.kind == "frame"
    assert (refusal.value.offset, refusal.value.size) == (offset, len(frame))
