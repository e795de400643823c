"""The size limits that decide how a merge writes a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """The size limits that decide how a merge writes a table. All were measured on two cores.

    `rewrite_log_files`: Arrow opens at most this many log files for a table, each in 2 ms.
    `rewrite_entries`: Arrow rewrites files for at most this many log entries of a table.
    `rewrite_bytes`: Arrow rewrites at most this many bytes of files with a changed key in each
    portion of a table. A table has one portion more than tasks run at once. Row groups pass one by
    one; the limit bounds only the time that one task takes.
    `rewrite_bytes_of_vectors`: the same for a table with deletion vectors. A MERGE writes few bytes
    of it, but takes longer.
    `driver_bytes`: if the tables that Arrow rewrites in a round are smaller than this together, the
    driver rewrites them. A Spark job takes 0.1 s more, and longer if the machine is busy.
    `driver_log_bytes`: the driver does so only if the files of the log with these tables' changes
    are smaller than this together.
    `carried_file_bytes`: the files that have values which the source did not send may have at most
    this many bytes together. One task reads them all.
    `carried_bytes`: the values that a table's rows keep because the source did not send them. They
    are in memory three times, and become one row group.
    `small_file_bytes`: a merge joins a file of this size or less with the rows that arrive, if the
    smaller files together have at least half its size.
    `open_file_bytes`: a file of this size or more gets no further rows.
    `joined_file_bytes`: files are joined to one file of about this size or less.
    `small_table_bytes`: Spark writes a table below this size whole, because a MERGE takes 3 s for
    any number of changes, and to write 100,000 rows of 40 bytes takes 1 s.
    `small_table_rows`: if more rows than this arrive, `small_table_bytes` is multiplied by their
    number divided by this one. A MERGE shuffles arriving rows twice more.
    `unshared_reads`: with fewer reads of a backfill, all are folded. Writing reads directly to
    files takes at least half a second.
    `shared_log_bytes`: if the log files of a round have this total size or less, each task reads
    them once for all its tables.
    """

    rewrite_entries: int = 500_000
    rewrite_log_files: int = 500
    rewrite_bytes: int = 16 << 30
    rewrite_bytes_of_vectors: int = 8 << 20
    driver_bytes: int = 1 << 20
    driver_log_bytes: int = 64 << 20
    carried_file_bytes: int = 96 << 20
    carried_bytes: int = 64 << 20
    small_file_bytes: int = 4 << 20
    open_file_bytes: int = 16 << 20
    joined_file_bytes: int = 64 << 20
    small_table_bytes: int = 4 << 20
    small_table_rows: int = 25_000
    unshared_reads: int = 10_000
    shared_log_bytes: int = 4 << 20


DEFAULT_LIMITS = MergeLimits()
