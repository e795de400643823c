"""Decides how many small files of a table a merge joins with the rows that arrive.

A merge also joins files below `open_file_bytes` that have a changed key: it writes them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

# A merge joins a file if the smaller files together have at least this share of its size. A smaller
# share leaves fewer files, and rewrites more rows.
_JOINED_SHARE = 0.5


def count_joined(sizes: Sequence[int], most: int) -> int:
    """How many of the smallest files to join; `sizes` in ascending order, `most` in bytes.

    A merge joins a file if the smaller files together have at least half its size. It then joins
    the smaller files, too. The joined files have at most `most` bytes together.

    So a file that waits is more than twice as large as all smaller ones together, unless the joined
    files would be too large. From 1 KiB to 4 MiB, about eight files wait at most. A merge of
    inserts rewrites few old rows on average.
    """
    count = smaller_bytes = 0
    for number, size in enumerate(sizes, 1):
        if smaller_bytes + size > most:
            break
        if smaller_bytes >= size * _JOINED_SHARE:
            # This joins the smaller files that the loop has passed, too.
            count = number
        smaller_bytes += size
    return count
