"""Forces the commits of a table to the disk before a cut names them.

Otherwise a cut could name a version that a power failure has removed.
"""

from __future__ import annotations

from pathlib import Path

from cdc_core.durability import make_durable, rewrite_commits
from cdc_core.errors import MergeError, Retry


def require_durable(table: Path, *, above: int, through: int, left: int | None = None) -> None:
    """Force the files of a Delta table's commits between two versions to the disk.

    Commits through `left` are of a merge that ended before its cut. The disk may have refused them
    then, and Linux reports that once only. So they are written to new files. Raises: MergeError.
    """
    middle = above if left is None else max(above, left)
    try:
        if middle > above:
            rewrite_commits(table, above=above, through=middle)
        make_durable(table, above=middle, through=through)
    except OSError as exc:
        raise MergeError(
            f"the storage did not take the files of {table}: {exc.strerror or type(exc).__name__}",
            fix="repair the storage, then merge again: the merge writes the refused files again",
            retry=Retry.AFTER_FIX,
        ) from exc
