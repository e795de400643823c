"""Frames changed at random: typed errors only, no more memory, no hang, never a wrong row."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pytest

from cdc_core.errors import ProtocolError
from cdc_core.protocol.frames import HEADER_SIZE, parse_keepalive
from cdc_core.protocol.messages import ROW_KINDS, parse_message
from cdc_core.protocol.rows import decode_rows
from tests.protocol import encoding, oracle
from tests.protocol.encoding import UNCHANGED, delete, insert, update
from tests.protocol.shapes import relation_from, shape_of
from tests.protocol.test_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

RELATIONS = [
    relation_from(0, 16385, "orders", 3),
    relation_from(0, 16390, "notes", 1),
    relation_from(0, 16391, "nothing", 0),
    relation_from(0, 16392, "wide", 1600),
]
SHAPES = [shape_of(entry) for entry in RELATIONS]
ROWS = [
    insert(16385, ["1", None, "größe"]),
    insert(16385, ["1234567890", "", "x" * 300]),
    insert(16391, []),
    update(16385, ["1", UNCHANGED, "y"]),
    update(16385, ["2", UNCHANGED, "y"], ["1", None, None], b"K"),
    update(16385, ["1", UNCHANGED, "y"], ["1", "long", "x"], b"O"),
    update(16390, ["1"], ["0"], b"K"),
    delete(16385, ["1", None, None]),
    delete(16390, ["text"], b"O"),
]
OTHERS = [frame for frame, _ in MESSAGES.values()]
OTHERS += [encoding.keepalive(1, 0), encoding.keepalive(2**40, 1)]
# Lengths, counts and kinds at which a decoder may go wrong.
LENGTHS = [0, 1, 2, 3, 4, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4, 2**32 - 5]
KINDS = b"IUDBCRTMOYANKOtnubwk\0\xff"

MAX_GROWTH_BYTES = 64 << 20
MAX_SECONDS = 5.0


def test_mutated_frames_raise_typed_errors_only(seed: int) -> None:
    _read_mutants(seed, count=20_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_mutated_frames_raise_typed_errors_only(seed: int) -> None:
    _read_mutants(seed, count=1_000_000)


def test_a_mutated_frame_among_others_is_an_error_or_changes_no_other_row(seed: int) -> None:
    chance = random.Random(seed)
    refused = 0
    for _ in range(2000):
        frames = chance.choices(ROWS, k=chance.randrange(1, 8))
        place = chance.randrange(len(frames))
        frames[place] = _mutate(chance, frames[place])
        refused += not _agrees_with_oracle(frames)
    assert 0 < refused < 2000


def _read_mutants(seed: int, *, count: int) -> None:
    """Read mutants one by one as capture would, and judge the rows among them."""
    chance = random.Random(seed)
    process = psutil.Process()
    before: int | None = None
    refused = 0
    for number in range(count):
        mutant = _mutate(chance, chance.choice(ROWS if number % 2 else OTHERS))
        start = time.monotonic()
        refused += not _is_read(mutant)
        assert time.monotonic() - start < MAX_SECONDS, mutant.hex()
        if number == count // 10:
            before = process.memory_info().rss
    assert before is not None
    assert process.memory_info().rss - before < MAX_GROWTH_BYTES
    assert pa.total_allocated_bytes() < MAX_GROWTH_BYTES
    assert count // 2 < refused < count, "too few mutants are broken, or all are"


def _is_read(frame: bytes) -> bool:
    """Read a frame; False where it is refused with a typed error."""
    try:
        if frame[:1] == b"k":
            parse_keepalive(frame)
        elif frame[:1] == b"w" and len(frame) > HEADER_SIZE and frame[HEADER_SIZE] in ROW_KINDS:
            return _agrees_with_oracle([frame])
        else:
            parse_message(frame)
    except ProtocolError:
        return False
    except Exception as exc:
        exc.add_note(f"frame: {frame.hex()}")
        raise
    return True


def _agrees_with_oracle(frames: Sequence[bytes]) -> bool:
    """Decode both ways: the same rows (True), or both refuse (False)."""
    try:
        expected = oracle.decode(frames, SHAPES)
    except oracle.RefusedError:
        with pytest.raises(ProtocolError):
            decode_rows(frames, RELATIONS)
        return False
    assert decode_rows(frames, RELATIONS).to_pylist() == expected, [f.hex() for f in frames]
    return True


def _mutate(chance: random.Random, frame: bytes) -> bytes:
    """Change a frame in one to three ways, mostly behind its header."""
    mutant = bytearray(frame)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        low = 0 if chance.random() < 0.05 else min(25, len(mutant))
        place = chance.randrange(low, len(mutant) + 1)
        match chance.randrange(8):
            case 0:
                del mutant[place:]
            case 1:
                mutant[place : place + 1] = bytes([chance.randrange(256)])
            case 2:
                mutant[place : place + 4] = chance.choice(LENGTHS).to_bytes(4, "big")
            case 3:
                mutant[place : place + 2] = chance.choice(LENGTHS[:7]).to_bytes(2, "big")
            case 4:
                mutant[place : place + 1] = bytes([chance.choice(KINDS)])
            case 5:
                del mutant[place : place + chance.randrange(1, 8)]
            case 6:
                mutant[place:place] = chance.randbytes(chance.randrange(1, 8))
            case _:
                mutant += chance.choice(ROWS)[chance.randrange(40) :]
    return bytes(mutant)
