"""Rows as COPY … TO STDOUT sends them in its text format, as texts in one Arrow array.

Every tab or newline byte ends a value, because COPY escapes those inside values. It escapes the
backslash, too.
Source: PostgreSQL documentation, COPY, section Text Format.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TAB, _NEWLINE, _BACKSLASH, _NULL = b"\t\n\\N"
# By the byte after a backslash: the byte that the two mean. COPY writes no other escapes.
_ESCAPED = np.arange(256, dtype=np.uint8)
_ESCAPED[np.frombuffer(b"bfnrtv", np.uint8)] = np.frombuffer(b"\b\f\n\r\t\v", np.uint8)
_FIRST_NOT_ASCII = 0x80

_Places = npt.NDArray[np.int64]


def parse_copied(data: bytes | memoryview) -> pa.StringArray:
    """The texts of all values, row after row; NULL is null.

    Raises: ArrowInvalid if a text is not UTF-8.
    """
    sent = np.frombuffer(data, np.uint8)
    # One comparison finds both: the newline follows the tab, and smaller bytes wrap around.
    is_dropped = sent - _TAB <= _NEWLINE - _TAB
    ends = np.flatnonzero(is_dropped)
    offsets = np.zeros(len(ends) + 1, np.int64)
    np.subtract(ends, np.arange(len(ends)), out=offsets[1:])
    valid: pa.Buffer | None = None
    null_count = 0
    texts = sent
    escapes = _find_escapes(sent)
    if len(escapes):
        is_null = sent[escapes + 1] == _NULL
        nulls = escapes[is_null]
        is_dropped[escapes] = True
        is_dropped[nulls + 1] = True
        owners = np.searchsorted(ends, escapes)
        dropped = np.zeros(len(ends), np.int64)
        np.add.at(dropped, owners, 1 + is_null)
        offsets[1:] -= np.cumsum(dropped)
        if null_count := len(nulls):
            is_valid = np.ones(len(ends), np.bool_)
            is_valid[owners[is_null]] = False
            valid = pa.array(is_valid).buffers()[1]
        if null_count < len(escapes):
            behind = escapes[~is_null] + 1
            texts = sent.copy()
            texts[behind] = _ESCAPED[sent[behind]]
    parsed = pa.StringArray.from_buffers(
        len(ends),
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(texts[~is_dropped]),
        valid,
        null_count,
    )
    if len(sent) and sent.max() >= _FIRST_NOT_ASCII:
        parsed.validate(full=True)
    return parsed


def _find_escapes(sent: npt.NDArray[np.uint8]) -> _Places:
    """The places of the backslashes that begin an escape, not of those that end one."""
    places: _Places = np.flatnonzero(sent == _BACKSLASH)
    if not len(places):
        return places
    begins_run = np.diff(places, prepend=-2) != 1
    run_starts = np.maximum.accumulate(np.where(begins_run, places, 0))
    starts: _Places = places[(places - run_starts) % 2 == 0]
    return starts
