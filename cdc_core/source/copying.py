"""Reads COPY … TO STDOUT, row by row as the rows arrive.

The driver's own reading of rows takes several times as long as everything that is done with them
later.
"""

from __future__ import annotations

import io
import select
import sys
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import pq, sql

# A piece stays in the processor's cache while it is parsed, and reuses the memory of the piece
# before. For a whole chunk at once, the system hands out and takes back memory pages, and that
# costs more than the reading.
_PIECE_BYTES = 256 << 10
# One system call reads up to this much, if it has arrived. By default libpq asks for 16 KB.
_BUFFER_BYTES = 256 << 10


class _Enough(Exception):
    """The limit of bytes is reached."""


def widen_buffer(connection: psycopg.Connection) -> None:
    """Make the connection read more of the arrived bytes at a time. Raises: psycopg.Error.

    The connection's buffer grows to the largest message and keeps that size. Source: libpq,
    fe-misc.c, `pqCheckInBufferSpace`.
    """
    connection.execute("select repeat(' ', %s)", (_BUFFER_BYTES,))


def copy_out(
    connection: psycopg.Connection,
    query: sql.Composed,
    take: Callable[[memoryview], None],
    *,
    most_bytes: int | None = None,
    answer_s: float | None = None,
) -> bool:
    """Run a COPY inside an open transaction, and give its output to `take`, whole rows at a time.

    Returns True if the COPY ran to its end. It is cut off after the row that reaches `most_bytes`;
    the transaction keeps its lock and snapshot. If nothing arrives for `answer_s` seconds, the
    connection is closed. Raises: psycopg.Error.
    """
    rows, held, taken = io.BytesIO(), 0, 0
    is_whole = False
    most = sys.maxsize if most_bytes is None else most_bytes
    # A savepoint, because a statement that is cut off fails.
    with (
        suppress(_Enough),
        connection.transaction(),
        connection.cursor() as cursor,
        cursor.copy(query),
    ):
        pgconn = connection.pgconn
        get, write = pgconn.get_copy_data, rows.write
        enough = min(_PIECE_BYTES, most)
        while True:
            size, row = get(1)
            if size > 0:
                held += write(row)
                if held >= enough:
                    taken += held
                    take(rows.getbuffer()[:held])
                    if taken >= most:
                        raise _Enough
                    rows.seek(0)
                    held, enough = 0, min(_PIECE_BYTES, most - taken)
            elif size == 0:
                _await_bytes(pgconn, answer_s)
            else:
                break
        _finish(pgconn, answer_s)
        take(rows.getbuffer()[:held])
        is_whole = True
    return is_whole


def _await_bytes(pgconn: pq.abc.PGconn, answer_s: float | None) -> None:
    """Wait for bytes and read them. Raises: psycopg.OperationalError if none arrive in time."""
    if not select.select([pgconn.socket], [], [], answer_s)[0]:
        # An orderly end of the statement would wait for the same answer.
        pgconn.finish()
        raise psycopg.OperationalError(f"no answer for {answer_s:g} s")
    pgconn.consume_input()


def _finish(pgconn: pq.abc.PGconn, answer_s: float | None) -> None:
    """Wait for the statement's result. Raises: psycopg.Error."""
    while True:
        while pgconn.is_busy():
            _await_bytes(pgconn, answer_s)
        result = pgconn.get_result()
        if result is None:
            return
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, encoding="utf-8")
