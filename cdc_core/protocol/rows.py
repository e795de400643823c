"""Decodes row messages of pgoutput, many at a time, to Arrow columns.

Except for concealed rows and rows that are not UTF-8, no step runs once for each value, and only
joining the frames runs once for each row. `tuples` finds the cells with numpy; Arrow copies those
that are needed. In a string array, an element begins where the one before it ends. So the elements
are alternately a cell and the gap after it.
Memory: two copies of the frames and 40 bytes per value, 4 of which stay in the batch; a value has
at least one byte in its frame.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.errors import UnexpectedMessage
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.protocol import tuples
from cdc_core.protocol.concealment import Concealment, conceal_messages
from cdc_core.protocol.tuples import Cells, Flags, Integers, Octets, RowMessages
from cdc_core.vocabulary import Operation, Relation

_OPERATIONS: Final = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.UNDECODED)
# The first byte value that is not ASCII; under the mask, a byte inside a UTF-8 character.
_BEYOND_ASCII = 0x80
_CONTINUATION_MASK, _CONTINUATION = 0xC0, 0x80
_UNDECODED_CODE = _OPERATIONS.index(Operation.UNDECODED)


@dataclass(frozen=True, slots=True)
class RelationFrom:
    """The relation of the rows of its oid, from `first_row` to the next relation of that oid.

    With a `concealment`, it is the concealed relation, and `decode_rows` conceals the rows first.
    """

    first_row: int
    relation: Relation
    concealment: Concealment | None = None


def decode_rows(
    frames: Sequence[bytes | memoryview], relations: Sequence[RelationFrom]
) -> pa.RecordBatch:
    """Decode whole frames of row messages into `DECODED_SCHEMA`, row i from frame i.

    A row with a value that is not UTF-8 becomes `undecoded`, with its message as hex in `detail`.
    An unchanged TOAST value is taken from the old tuple if the old tuple has it.
    Raises: MalformedMessage, UnexpectedMessage (no relation announced), ProtocolError (over 1 GiB).
    """
    if not frames:
        return pa.RecordBatch.from_pylist([], schema=DECODED_SCHEMA)
    if any(entry.concealment for entry in relations):
        rules = [(entry.first_row, entry.relation.oid, entry.concealment) for entry in relations]
        frames = conceal_messages(frames, rules)
    messages = tuples.join_messages(frames)
    chosen = _match_relations(messages, relations)
    cells = tuples.walk_tuples(messages)
    is_text = np.ones(len(frames), dtype=np.bool_)
    values, unchanged, old_values = _gather(messages, cells, is_text)
    is_text = _find_utf8(values) & _find_utf8(old_values)
    if not is_text.all():
        values, unchanged, old_values = _gather(messages, cells, is_text)
    codes = np.where(messages.kinds == tuples.UPDATE, 1, 2 * messages.has_old)
    codes[~is_text] = _UNDECODED_CODE
    used = np.flatnonzero(np.bincount(chosen))
    shapes = [relations[index].relation for index in used.tolist()]
    places = pa.array(np.searchsorted(used, chosen))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([str(shape.table) for shape in shapes], pa.string()).take(places),
            pa.array([shape.version for shape in shapes], pa.int64()).take(places),
            pa.array(_OPERATIONS, pa.string()).take(pa.array(codes)),
            values,
            unchanged,
            old_values,
            _explain_undecoded(messages, is_text),
        ],
        schema=DECODED_SCHEMA,
    )


def _match_relations(messages: RowMessages, relations: Sequence[RelationFrom]) -> Integers:
    """Choose for each row the last relation of its oid announced before it, by index."""
    oids = np.array([entry.relation.oid for entry in relations], dtype=np.uint64)
    first_rows = np.array([entry.first_row for entry in relations], dtype=np.uint64)
    widths = np.array([len(entry.relation.columns) for entry in relations], dtype=np.int64)
    announced = oids << np.uint64(32) | first_rows
    order = np.argsort(announced, kind="stable")
    row_oids = messages.oids.astype(np.uint64)
    needed = row_oids << np.uint64(32) | np.arange(len(row_oids), dtype=np.uint64)
    places = np.searchsorted(announced[order], needed, side="right") - 1
    known = places >= 0
    if known.all():
        chosen: Integers = order[places]
        known = oids[chosen] == row_oids
    if not known.all():
        row = int(known.argmin())
        state = f"relation {messages.oids[row]} is not announced"
        raise UnexpectedMessage(state, messages.kind_name(row))
    other = widths[chosen] != messages.widths
    if other.any():
        row = int(other.argmax())
        reason = f"{messages.widths[row]} columns, but {widths[chosen[row]]} are announced,"
        raise messages.refuse(row, int(messages.begins[row]) + 6, reason)
    return chosen


def _gather(
    messages: RowMessages, cells: Cells, is_text: Flags
) -> tuple[pa.ListArray, pa.ListArray, pa.ListArray]:
    """Copy new values, indexes of unchanged ones, old values. Rows not in `is_text` get null."""
    texts = _texts_and_gaps(messages, cells)
    has_new, has_old = messages.has_new & is_text, messages.has_old & is_text
    new_counts, old_counts = messages.widths * has_new, messages.widths * has_old
    slots = _expand(cells.new_firsts, new_counts)
    unchanged = np.flatnonzero(cells.kinds[slots] == tuples.UNCHANGED)
    if not len(unchanged):
        indexes = pa.nulls(len(is_text), DECODED_SCHEMA.field("unchanged").type)
    else:
        rows = np.searchsorted(cells.old_firsts, slots[unchanged], side="right") - 1
        columns = slots[unchanged] - cells.new_firsts[rows]
        slots[unchanged] -= messages.widths[rows] * messages.has_old[rows]
        absent = cells.kinds[slots[unchanged]] != tuples.TEXT
        counts = np.bincount(rows[absent], minlength=len(is_text))
        indexes = _to_lists("unchanged", pa.array(columns[absent], pa.int32()), counts, counts > 0)
    old_slots = _expand(cells.old_firsts, old_counts)
    return (
        _to_lists("values", _take(texts, cells, slots), new_counts, has_new),
        indexes,
        _to_lists("old_values", _take(texts, cells, old_slots), old_counts, has_old),
    )


def _texts_and_gaps(messages: RowMessages, cells: Cells) -> pa.StringArray:
    """Show the joined frames as a string array: cell 0, gap, cell 1, gap, … the last cell."""
    count = max(2 * len(cells.kinds) - 1, 0)
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(cells.spans), pa.py_buffer(messages.octets)
    )


def _take(texts: pa.StringArray, cells: Cells, slots: Integers) -> pa.StringArray:
    """Copy the texts of these cells; a cell without text is null."""
    return texts.take(pa.array(2 * slots, mask=cells.kinds[slots] != tuples.TEXT))


def _expand(firsts: Integers, counts: Integers) -> Integers:
    """List `first, first + 1, …`, `count` of them, for each row in turn."""
    ends = np.cumsum(counts)
    slots: Integers = np.repeat(firsts - (ends - counts), counts)
    slots += np.arange(len(slots))
    return slots


def _to_lists(name: str, elements: pa.Array, counts: Integers, present: Flags) -> pa.ListArray:
    """Cut elements into one list per row; null for a row that is not `present`."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        elements,
        type=DECODED_SCHEMA.field(name).type,
        mask=None if present.all() else pa.array(~present),
    )


def _find_utf8(lists: pa.ListArray) -> Flags:
    """Find for each row whether all its texts are UTF-8."""
    is_text = np.ones(len(lists), dtype=np.bool_)
    texts = lists.values
    _, ends, data = texts.buffers()
    offsets = np.frombuffer(ends, dtype=np.int32, count=len(texts) + 1)
    octets = np.frombuffer(data, dtype=np.uint8, count=int(offsets[-1]))
    if _are_utf8(octets, offsets[:-1]):
        return is_text
    # Only a text with a byte beyond ASCII can be wrong.
    beyond = np.flatnonzero(octets >= _BEYOND_ASCII)
    suspects = np.unique(np.searchsorted(offsets, beyond, side="right") - 1)
    broken = [
        suspect
        for suspect in suspects.tolist()
        if not _is_utf8(octets[offsets[suspect] : offsets[suspect + 1]].tobytes())
    ]
    rows = np.searchsorted(lists.offsets.to_numpy(), broken, side="right") - 1
    is_text[rows] = False
    return is_text


def _are_utf8(octets: Octets, starts: npt.NDArray[np.int32]) -> bool:
    """Whether the bytes are UTF-8 and no text starts inside a character."""
    if octets.max(initial=0) < _BEYOND_ASCII:
        return True
    whole = np.array([0, len(octets)], dtype=np.int32)
    text = pa.StringArray.from_buffers(1, pa.py_buffer(whole), pa.py_buffer(octets))
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    inside = octets[starts[starts < len(octets)]] & _CONTINUATION_MASK == _CONTINUATION
    return not inside.any()


def _is_utf8(text: bytes) -> bool:
    """Whether one text is UTF-8."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _explain_undecoded(messages: RowMessages, is_text: Flags) -> pa.StringArray:
    """Keep the reason and the message of each row that is not UTF-8; null for the others."""
    details: list[str | None] = [None] * len(is_text)
    for row in np.flatnonzero(~is_text).tolist():
        message = messages.octets[messages.begins[row] : messages.ends[row]].tobytes()
        details[row] = json.dumps({"reason": "not UTF-8", "message": message.hex()})
    return pa.array(details, pa.string())
