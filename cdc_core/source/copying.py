"""COPY … TO STDOUT, row by row as it arrives.

The driver's own reading of rows takes several times as long as all that is done with them after.
"""

from __future__ import annotations

import select
import sys
from contextlib import suppress

import psycopg
from psycopg import pq, sql


class _Enough(Exception):
    """As many bytes were read as may be."""


def copy_out(
    connection: psycopg.Connection, query: sql.Composed, *, most_bytes: int | None = None
) -> tuple[bytearray, bool]:
    """What a COPY inside an open transaction sends, and whether that is all of it.

    Where it is more than so many bytes, the row at which that was passed is the last. What is cut
    off leaves lock and snapshot as they are. Raises: psycopg.Error.
    """
    # Grows in place: kept row by row, a chunk would stand in memory twice when it is joined.
    rows = bytearray()
    is_whole = False
    most = sys.maxsize if most_bytes is None else most_bytes
    # A savepoint: the statement that is cut off fails.
    with (
        suppress(_Enough),
        connection.transaction(),
        connection.cursor() as cursor,
        cursor.copy(query),
    ):
        pgconn = connection.pgconn
        get = pgconn.get_copy_data
        while True:
            size, row = get(1)
            if size > 0:
                rows += row
                if len(rows) >= most:
                    raise _Enough
            elif size == 0:
                select.select([pgconn.socket], [], [])
                pgconn.consume_input()
            else:
                break
        _finish(pgconn)
        is_whole = True
    return rows, is_whole


def _finish(pgconn: pq.abc.PGconn) -> None:
    """Take the statement's result. Raises: psycopg.Error."""
    while True:
        while pgconn.is_busy():
            select.select([pgconn.socket], [], [])
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, encoding="utf-8")
