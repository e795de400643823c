"""Row messages to columns: what each kind of message and of value becomes."""

from __future__ import annotations

import json
import mmap
import struct
import tracemalloc

import psutil
import pyarrow as pa
import pytest

from cdc_core.errors import MalformedMessage, ProtocolError, UnexpectedMessage
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.protocol.rows import decode_rows
from tests.protocol import encoding
from tests.protocol.encoding import UNCHANGED, delete, insert, update
from tests.protocol.shapes import relation_from

ORDERS, NOTES = 16385, 4_000_000_000
RELATIONS = [relation_from(0, ORDERS, "orders", 3), relation_from(0, NOTES, "Notes", 2)]
LENGTH_OF_2_GIB = struct.pack(">I", 2**31 - 1)

ROWS = {
    "Insert": insert(ORDERS, ["1", None, "grün"]),
    "Update": update(ORDERS, ["1", UNCHANGED, ""]),
    "Update with key": update(ORDERS, ["2", UNCHANGED, "x"], ["1", None, None], b"K"),
    "Update with old row": update(NOTES, ["1", UNCHANGED], ["1", "long"], b"O"),
    "Delete": delete(ORDERS, ["1", None, None]),
}
PLACES = {name: [0, 0, 0, 3, 0][place] for place, name in enumerate(ROWS)}


def decode(*frames: bytes) -> list[dict[str, object]]:
    """Decode frames and check the batch as Arrow does."""
    batch = decode_rows(frames, RELATIONS)
    batch.validate(full=True)
    assert batch.schema == DECODED_SCHEMA
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows


def images(frame: bytes) -> tuple[object, object, object, object]:
    """Decode one frame to operation, values, unchanged and old values."""
    (row,) = decode(frame)
    return row["op"], row["values"], row["unchanged"], row["old_values"]


def test_an_insert_has_new_values_only() -> None:
    assert images(ROWS["Insert"]) == ("insert", ["1", None, "grün"], None, None)


def test_an_update_names_what_did_not_change() -> None:
    assert images(ROWS["Update"]) == ("update", ["1", None, ""], [1], None)
    several = update(ORDERS, [UNCHANGED, None, UNCHANGED])
    assert images(several) == ("update", [None, None, None], [0, 2], None)


def test_an_update_of_the_key_has_the_old_key() -> None:
    new, old = ["2", None, "x"], ["1", None, None]
    assert images(ROWS["Update with key"]) == ("update", new, [1], old)


def test_an_unchanged_value_that_the_old_row_carries_is_filled_in() -> None:
    assert images(ROWS["Update with old row"]) == ("update", ["1", "long"], None, ["1", "long"])


def test_an_unchanged_value_that_the_old_row_lacks_stays_unchanged() -> None:
    for lacking in (None, UNCHANGED):
        frame = update(ORDERS, [UNCHANGED, UNCHANGED, "x"], ["1", lacking, ""], b"O")
        assert images(frame) == ("update", ["1", None, "x"], [1], ["1", None, ""])


def test_a_delete_has_old_values_only() -> None:
    assert images(ROWS["Delete"]) == ("delete", None, None, ["1", None, None])
    whole = delete(ORDERS, ["1", "a", UNCHANGED], b"O")
    assert images(whole) == ("delete", None, None, ["1", "a", None])


def test_a_row_without_columns_is_an_empty_list_and_no_row_is_null() -> None:
    relations = [relation_from(0, 7, "nothing", 0)]
    frames = [insert(7, []), update(7, [], [], b"O"), delete(7, [], b"O")]
    batch = decode_rows(frames, relations)
    assert batch["values"].to_pylist() == [[], [], None]
    assert batch["old_values"].to_pylist() == [None, [], []]


def test_no_frames_are_an_empty_batch() -> None:
    batch = decode_rows([], [])
    assert (batch.num_rows, batch.schema) == (0, DECODED_SCHEMA)


def test_rows_of_several_tables_stay_in_order_with_their_names() -> None:
    rows = decode(
        ROWS["Delete"], insert(NOTES, ["1", "a"]), ROWS["Insert"], ROWS["Update with old row"]
    )
    quoted = 'public."Notes"'
    assert [row["table"] for row in rows] == ["public.orders", quoted, "public.orders", quoted]
    versions = [entry.relation.version for entry in RELATIONS]
    assert [row["relation_version"] for row in rows] == [versions[i] for i in (0, 1, 0, 1)]
    assert [row["values"] for row in rows] == [None, ["1", "a"], ["1", None, "grün"], ["1", "long"]]


def test_a_row_decodes_by_the_last_relation_announced_before_it() -> None:
    narrow, wide = relation_from(0, ORDERS, "orders", 1), relation_from(2, ORDERS, "orders", 2)
    last = relation_from(3, ORDERS, "renamed", 2)
    frames = [insert(ORDERS, ["1"])] * 2 + [insert(ORDERS, ["1", "2"])] * 2
    for relations in ([narrow, wide, last], [last, wide, narrow]):
        batch = decode_rows(frames, relations)
        expected = [entry.relation.version for entry in (narrow, narrow, wide, last)]
        assert batch["relation_version"].to_pylist() == expected
        assert batch["table"].to_pylist()[-1] == "public.renamed"


def test_of_two_announcements_at_one_row_the_later_holds() -> None:
    relations = [relation_from(0, ORDERS, "orders", 1), relation_from(0, ORDERS, "orders", 2)]
    assert decode_rows([insert(ORDERS, ["1", "2"])], relations)["values"].to_pylist() == [
        ["1", "2"]
    ]


def test_a_row_before_its_relation_is_unexpected() -> None:
    later = [relation_from(1, ORDERS, "orders", 1)]
    with pytest.raises(UnexpectedMessage, match="relation 16385 is not announced"):
        decode_rows([insert(ORDERS, ["1"])] * 2, later)


@pytest.mark.parametrize("oid", [1, ORDERS + 1, 2**32 - 1])
def test_a_row_of_an_unknown_relation_is_unexpected(oid: int) -> None:
    for relations in (RELATIONS, []):
        with pytest.raises(UnexpectedMessage, match=f"relation {oid} is not announced"):
            decode_rows([insert(oid, ["1", "2"])], relations)


def test_another_number_of_columns_than_announced_is_malformed() -> None:
    for frame in (
        insert(ORDERS, ["1"]),
        update(ORDERS, ["1"] * 4),
        update(ORDERS, ["1"] * 2, ["1"] * 3, b"O"),
        delete(ORDERS, ["1"]),
    ):
        with pytest.raises(MalformedMessage):
            decode_rows([ROWS["Insert"], frame], RELATIONS)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_message_cut_at_any_byte_is_malformed(name: str) -> None:
    frame = ROWS[name]
    kind = name.split(maxsplit=1)[0]
    for size in range(len(frame)):
        for batch in ([frame[:size]], [frame, frame[:size], frame]):
            with pytest.raises(MalformedMessage) as refusal:
                decode_rows(batch, RELATIONS)
            assert refusal.value.size == max(size - 25, 0)
            assert 0 <= refusal.value.offset <= refusal.value.size
            assert refusal.value.kind == (kind if size > 25 else "row")


def test_a_row_message_cut_inside_the_head_of_its_second_tuple_is_malformed() -> None:
    """Behind the cut lie zeros, with which the head would read as that of 256 columns."""
    whole = update(9, ["1"] * 256, ["x" * 9] * 256, b"O")
    head = whole.index(b"N\1\0")
    for size in (head, head + 1, head + 2, head + 3):
        with pytest.raises(MalformedMessage) as refusal:
            decode_rows([whole[:size]], [relation_from(0, 9, "wide", 256)])
        assert refusal.value.offset <= refusal.value.size


@pytest.mark.parametrize("name", ROWS)
def test_bytes_left_over_in_a_row_message_are_malformed(name: str) -> None:
    frame = ROWS[name]
    for extra in (b"\0", b"n", frame):
        for batch in ([frame + extra], [frame, frame + extra, frame]):
            with pytest.raises(MalformedMessage) as refusal:
                decode_rows(batch, RELATIONS)
            assert (refusal.value.kind, refusal.value.size) == (
                name.split(maxsplit=1)[0],
                len(frame + extra) - 25,
            )


@pytest.mark.parametrize(
    ("frame", "reason", "offset"),
    [
        (encoding.frame(b"I" + struct.pack(">I", ORDERS) + b"K\0\3nnn"), "wrong kind of tuple", 5),
        (encoding.frame(b"D" + struct.pack(">I", ORDERS) + b"N\0\3nnn"), "wrong kind of tuple", 5),
        (encoding.frame(b"U" + struct.pack(">I", ORDERS) + b"X\0\3nnn"), "wrong kind of tuple", 5),
        (
            encoding.frame(b"U" + struct.pack(">I", ORDERS) + b"K\0\3nnnK\0\3nnn"),
            "no new tuple of the relation's width",
            11,
        ),
        (insert(ORDERS, ["1", None, ""]).replace(b"n", b"x"), "unknown kind of value", 14),
        (insert(ORDERS, ["1", "22", ""]).replace(b"t\0\0\0\2", b"b\0\0\0\2"), "binary value", 14),
        (
            insert(ORDERS, ["1", "22", ""]).replace(b"\0\0\0\2", LENGTH_OF_2_GIB),
            "value ends after its message",
            14,
        ),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_what_a_server_never_sends_is_malformed_at_its_place(
    frame: bytes, reason: str, offset: int
) -> None:
    for batch in ([frame], [ROWS["Insert"], frame, ROWS["Delete"]]):
        with pytest.raises(MalformedMessage, match=reason) as refusal:
            decode_rows(batch, RELATIONS)
        assert (refusal.value.offset, refusal.value.size) == (offset, len(frame) - 25)


def test_another_message_than_a_row_message_is_unexpected() -> None:
    with pytest.raises(UnexpectedMessage, match="0x54"):
        decode_rows([ROWS["Insert"], encoding.truncate([1, 2], 0)], RELATIONS)
    with pytest.raises(MalformedMessage, match="frame"):
        decode_rows([b"k" + ROWS["Insert"][1:]], RELATIONS)


def test_a_length_field_allocates_nothing() -> None:
    lying = insert(ORDERS, ["1", "22", ""]).replace(b"\0\0\0\2", LENGTH_OF_2_GIB)
    wide = encoding.frame(b"I" + struct.pack(">I", 9) + b"N" + struct.pack(">H", 65535) + b"nnnn")
    relations = [*RELATIONS, relation_from(0, 9, "wide", 65535)]
    process = psutil.Process()
    before = process.memory_info().rss, pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for frame in (lying, wide):
            with pytest.raises(MalformedMessage):
                decode_rows([frame] * 100, relations)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20, "of which the 65535 widths and names are the most"
    assert process.memory_info().rss - before[0] < 32 << 20
    assert pa.total_allocated_bytes() == before[1]


def test_more_bytes_than_a_column_can_hold_are_refused_before_they_are_read() -> None:
    frame = memoryview(mmap.mmap(-1, 2**29 + 1))
    with pytest.raises(ProtocolError, match="1073741826 bytes"):
        decode_rows([frame, frame], RELATIONS)


NOT_UTF8 = {
    "latin-1": b"caf\xe9",
    "cut character": b"\xe2\x82",
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\x80",
    "beyond unicode": b"\xf4\x90\x80\x80",
    "continuation first": b"\xa9",
}


@pytest.mark.parametrize("name", NOT_UTF8)
@pytest.mark.parametrize("others", ["ascii", "größe €𝄞"])
def test_a_row_that_is_not_utf8_is_kept_undecoded_and_the_others_are_not_touched(
    name: str, others: str
) -> None:
    value = NOT_UTF8[name]
    good = [insert(ORDERS, ["1", None, others]), delete(NOTES, [others, ""], b"O")]
    bad = [
        insert(NOTES, ["canary", value]),
        update(ORDERS, ["1", others, value], ["1", None, None], b"K"),
        update(NOTES, ["1", UNCHANGED], ["1", value], b"O"),
        delete(NOTES, [value, None]),
    ]
    for broken in bad:
        rows = decode(*good, broken, *good)
        assert rows[:2] + rows[3:] == decode(*good, *good)
        detail = rows[2].pop("detail")
        assert json.loads(str(detail)) == {"reason": "not UTF-8", "message": broken[25:].hex()}
        assert rows[2]["op"] == "undecoded"
        assert rows[2]["table"] is not None
        assert rows[2]["relation_version"] is not None
        assert (rows[2]["values"], rows[2]["unchanged"], rows[2]["old_values"]) == (None,) * 3
    assert [row["op"] for row in decode(*bad)] == ["undecoded"] * 4


def test_halves_of_a_character_in_neighbouring_values_are_not_a_character() -> None:
    rows = decode(insert(NOTES, [b"\xc3", b"\xa9"]), insert(NOTES, ["é", "é"]))
    assert [row["op"] for row in rows] == ["undecoded", "insert"]
    assert rows[1]["values"] == ["é", "é"]


def test_a_filled_in_value_is_not_judged_twice() -> None:
    """The bytes of an old tuple that are not UTF-8 make the row undecoded, filled in or not."""
    frame = update(NOTES, [UNCHANGED, UNCHANGED], [b"\xe9", "x"], b"O")
    assert [row["op"] for row in decode(frame, ROWS["Insert"])] == ["undecoded", "insert"]


def test_memoryviews_decode_as_bytes_do() -> None:
    frames = list(ROWS.values())
    assert decode_rows([memoryview(f) for f in frames], RELATIONS).equals(
        decode_rows(frames, RELATIONS)
    )


def test_the_batch_holds_no_memory_of_the_frames() -> None:
    value = "x" * (8 << 20)
    before = pa.total_allocated_bytes()
    batch = decode_rows([insert(NOTES, ["1", value]), delete(NOTES, ["1", None])], RELATIONS)
    assert pa.total_allocated_bytes() - before < len(value) + (1 << 20)
    assert batch["values"].to_pylist()[0] == ["1", value]
