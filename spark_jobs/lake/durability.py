"""Forces the commits of a table to the disk before a cut names them.

After a power failure a cut could otherwise name a version that is gone, and a commit could name a
data file that is gone. So a merge forces data files to the disk before the commit that names them.
Spark makes the commit of a MERGE: the merge forces its data files right after it. A commit is on
the disk before anything is built on it, and so before the cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from cdc_core.errors import MergeError, Retry
from cdc_core.lake_storage.durability import force_files, make_durable, rewrite_commits
from cdc_core.lake_storage.place import LakePlace


def require_forced(table: LakePlace, names: Collection[str]) -> frozenset[LakePlace]:
    """Force data files of a table to the disk, before a commit names them; give their paths.

    Raises: MergeError.
    """
    with _refusing(table):
        return force_files(table, names)


def require_durable(
    table: LakePlace,
    *,
    above: int,
    through: int,
    left: int | None = None,
    forced: Collection[LakePlace] = frozenset(),
) -> None:
    """Force the files of a Delta table's commits between two versions to the disk.

    The files in `forced` are on the disk already. Commits through `left` are of a merge that ended
    before its cut. The disk may have refused them then, and Linux reports that only once. So the
    function writes them to new files. Raises: MergeError.
    """
    middle = above if left is None else max(above, left)
    with _refusing(table):
        if middle > above:
            rewrite_commits(table, above=above, through=middle)
        make_durable(table, above=middle, through=through, forced=forced)


@contextmanager
def _refusing(table: LakePlace) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise MergeError(
            f"the storage refused the files of {table}: {exc.strerror or type(exc).__name__}",
            fix="repair the storage, then merge again: the merge writes the refused files again",
            retry=Retry.AFTER_FIX,
        ) from exc
