"""Recognises the commits of this process by a mark in each.

The storage may make a commit although its reply is lost. delta-rs then tries again, and finds the
version taken by its own first try.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from deltalake import CommitProperties
from deltalake.exceptions import DeltaError

from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.place import LakePlace

_MARK = "walgateMark"


def make_mark() -> dict[str, str]:
    """Make the metadata that marks one commit."""
    return {_MARK: uuid.uuid4().hex}


def commit_once(
    table: LakePlace, version: int, commit: Callable[[CommitProperties], object]
) -> None:
    """Make a version of a table: `commit` gets the properties of the commit, and makes it.

    The commit becomes this version, and no later one. If `commit` fails although the version has
    its mark, this function returns as if it had not failed.
    Raises: CommitFailedError if another commit made the version; DeltaError; OSError.
    """
    mark = make_mark()
    try:
        commit(CommitProperties(max_commit_retries=0, custom_metadata=mark))
    except (DeltaError, OSError):
        if not find_outcome(table, version, mark):
            raise


def find_outcome(table: LakePlace, version: int, mark: dict[str, str]) -> bool | None:
    """True if a version of a table is the marked commit, False if another; None if there is none.

    Raises: OSError.
    """
    try:
        commit = (table / name_commit(version)).read_text()
    except FileNotFoundError:
        return None
    return mark[_MARK] in commit
