"""Rows as COPY … TO STDOUT sends them in its text format, as texts in one Arrow array.

Every tab and newline that is sent as such ends a value: those inside values are escaped, and so is
the backslash. Source: PostgreSQL documentation, COPY, section Text Format.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TAB, _NEWLINE, _BACKSLASH, _NULL = b"\t\n\\N"
# What stands behind a backslash, and what it stands for; COPY writes no others.
_ESCAPED = np.arange(256, dtype=np.uint8)
_ESCAPED[np.frombuffer(b"bfnrtv", np.uint8)] = np.frombuffer(b"\b\f\n\r\t\v", np.uint8)

_Places = npt.NDArray[np.int64]


def parse_copied(data: bytes) -> pa.StringArray:
    """The texts of all values, row after row; NULL is null.

    Raises: ArrowInvalid where a text is not UTF-8.
    """
    sent = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((sent == _TAB) | (sent == _NEWLINE))
    escapes = _find_escapes(sent)
    starts = np.append(np.int64(0), ends + 1)[: len(ends)]
    nulls = escapes[sent[escapes + 1] == _NULL]
    is_null = np.zeros(len(ends), np.bool_)
    is_null[np.searchsorted(starts, nulls)] = True
    texts = sent.copy()
    texts[escapes + 1] = _ESCAPED[sent[escapes + 1]]
    dropped = np.sort(np.concatenate([escapes, nulls + 1]))
    is_kept = np.ones(len(sent), np.bool_)
    is_kept[ends] = False
    is_kept[dropped] = False
    kept = ends - np.arange(len(ends)) - np.searchsorted(dropped, ends)
    offsets = np.append(np.int64(0), kept).astype(np.int32)
    parsed = pa.StringArray.from_buffers(
        len(ends),
        pa.py_buffer(offsets),
        pa.py_buffer(texts[is_kept]),
        pa.array(~is_null).buffers()[1] if len(nulls) else None,
        len(nulls),
    )
    parsed.validate(full=True)
    return parsed


def _find_escapes(sent: npt.NDArray[np.uint8]) -> _Places:
    """Where a backslash begins an escape: each that no escape has begun just before."""
    places: _Places = np.flatnonzero(sent == _BACKSLASH)
    if not len(places):
        return places
    begins_run = np.diff(places, prepend=-2) != 1
    run_starts = np.maximum.accumulate(np.where(begins_run, places, 0))
    starts: _Places = places[(places - run_starts) % 2 == 0]
    return starts
