"""Commits of a table made as durable as the cut that names them.

After a power failure a cut could name a version that is gone otherwise. So what each commit brought
is on the disk before the cut is written.
"""

from __future__ import annotations

from pathlib import Path

from cdc_core.durability import make_durable, rewrite_commits
from cdc_core.errors import MergeError, Retry


def require_durable(table: Path, *, above: int, through: int, left: int | None = None) -> None:
    """Force to the disk what the commits of a Delta table between two versions have brought.

    Those through `left` are of a merge that ended before its cut. The disk may have refused them
    then, and Linux tells that once: they are written anew. Raises: MergeError.
    """
    middle = above if left is None else max(above, left)
    try:
        if middle > above:
            rewrite_commits(table, above=above, through=middle)
        make_durable(table, above=middle, through=through)
    except OSError as exc:
        raise MergeError(
            f"the storage did not take the files of {table}: {exc.strerror or type(exc).__name__}",
            fix="mend the storage, then merge again: what it refused is written anew",
            retry=Retry.AFTER_FIX,
        ) from exc
