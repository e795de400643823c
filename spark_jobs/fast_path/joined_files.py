"""Decides how many small files of a table a merge joins with the rows that arrive."""

from __future__ import annotations

from collections.abc import Sequence

# A file is joined if the smaller ones have this share of its size together. A smaller share leaves
# fewer files, and rewrites more rows.
_JOINED_SHARE = 0.5


def count_joined(sizes: Sequence[int], most: int) -> int:
    """How many of the smallest files to join; `sizes` in ascending order, `most` in bytes.

    A file is joined if the smaller files together have at least half its size; they are joined,
    too. So a file that waits is more than twice as large as all smaller ones together. At most
    about eight files wait, and a merge of inserts rewrites few old rows on average.

    The joined files have at most `most` bytes together. The others wait for later merges.
    """
    count = smaller_bytes = 0
    for number, size in enumerate(sizes, 1):
        if smaller_bytes + size > most:
            break
        if smaller_bytes >= size * _JOINED_SHARE:
            # Also the smaller files that did not pay before.
            count = number
        smaller_bytes += size
    return count
