"""Messages that any role of a database may write under our prefix, each meant to end capture."""

from __future__ import annotations

import json
import random

from cdc_core.backfill.marks import (
    BeginBackfill,
    EndBackfill,
    RequestSweep,
    Watermark,
    format_backfill_mark,
)
from cdc_core.backfill.visibility import Snapshot

BACKFILL, MEMORY = "a" * 32, "b" * 32
SNAPSHOT = Snapshot.parse("90:100:90,95")
STEPS = (
    BeginBackfill(BACKFILL, MEMORY, "public.a"),
    Watermark(BACKFILL, MEMORY, 0, 1, SNAPSHOT, SNAPSHOT, 0),
    RequestSweep(BACKFILL),
    EndBackfill(BACKFILL, MEMORY),
)
DEEP = 100_000


def _change(**fields: object) -> bytes:
    """Give a watermark with some of its fields changed."""
    return json.dumps(json.loads(format_backfill_mark(STEPS[1])) | fields).encode()


def _begin(table: object) -> bytes:
    return json.dumps(
        {"step": "begin", "backfill": BACKFILL, "memory": MEMORY, "table": table}
    ).encode()


# Each of them is none of ours.
WORST = (
    b"",
    b"\xff\xfe",
    b"\0",
    b"no mark",
    b"[7]",
    b"7",
    b'"mark"',
    b"[" * DEEP,
    b'{"mark":' * DEEP,
    b'{"step":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"mark": ' + b"9" * 10_000 + b"}",
    b'{"step": "watermark", "chunk": ' + b"9" * 10_000 + b"}",
    b'{"mark": NaN}',
    b'{"mark": -Infinity}',
    b'{"mark": 1e999}',
    b'{"mark": "x", "mark": "y"}',
    b'{"mark": "\\ud800"}',
    b'{"mark": "\\u0000"}',
    b'{"\\ud800": "x"}',
    b'{"mark": null}',
    b'{"mark": true}',
    b'{"mark": ["x"]}',
    b'{"mark": "x", "state": "staged"}',
    b'{"mark": "' + b"x" * 100_000 + b'"}',
    b'{"mark": "' + b"x" * (2 << 20) + b'"}',
    b"{}",
    b'{"step": []}',
    b'{"step": "watermark"}',
    b'{"step": "none"}',
    _begin("public.\ud800"),
    _begin("\ud800.a"),
    _begin("public.a\0"),
    _begin("public." + "x" * 100_000),
    _begin("no_schema"),
    _begin(7),
    _begin(None),
    _begin('"public".a'),
    _change(has_more=2),
    _change(has_more="1"),
    _change(snapshot="1:2:3"),
    _change(snapshot="9:1:"),
    _change(snapshot="1:99999999999999999999999:"),
    _change(oldest="1:9223372036854775807:"),
    _change(snapshot="٣:٤:"),
    _change(snapshot="1:2:" + "1," * 400_000 + "1"),
    _change(snapshot=7),
    _change(snapshot="1:9" + "9" * 100_000 + ":"),
    _change(chunk=-1),
    _change(chunk=1 << 63),
    _change(chunk=1 << 70),
    _change(attempt=1.5),
    _change(attempt=True),
    _change(state="staged", rows=0),
    _change(backfill="a" * 31 + "\n"),
    _change(backfill="../" * 10 + "aa"),
    _change(memory=None),
)


def draw_hostile(chance: random.Random) -> bytes:
    """Draw a message: one of the worst, or one of ours that was changed somewhere."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(WORST[:8] + WORST[10:])
    if kind == 1:
        return bytes(chance.randbytes(chance.randrange(60)))
    fields = json.loads(format_backfill_mark(chance.choice(STEPS)))
    for _ in range(chance.randrange(3)):
        fields[chance.choice([*fields, "other"])] = _draw_value(chance, 3)
    text = bytearray(
        json.dumps(fields, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    )
    if kind == 3:
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(text))
            text[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            text = text or bytearray(b"{")
    return bytes(text)


def _draw_value(chance: random.Random, depth: int) -> object:
    values: list[object] = [
        None,
        True,
        chance.choice([0, -1, 1 << 31, 1 << 63, 1 << 64, 10**400]),
        chance.random() * 10**300,
        chance.choice(
            ["", "\0", "\ud800x", "x" * 1000, "٣", "public.a", 'public."', "1:2:1", "f" * 32]
        ),
        f"{chance.getrandbits(chance.randrange(1, 80))}:{chance.getrandbits(64)}:",
        "".join(map(chr, chance.choices(range(0x110000), k=5))),
        chance.getrandbits(128).to_bytes(16, "big").hex(),
    ]
    if depth:
        values += [[_draw_value(chance, depth - 1)], {"x": _draw_value(chance, depth - 1)}]
    return chance.choice(values)
