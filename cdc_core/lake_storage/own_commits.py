"""Recognises the commits of this process by an identifier in each.

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

_COMMIT_ID = "walgateCommit"


def make_commit_id() -> dict[str, str]:
    """Make the metadata that identifies one commit."""
    return {_COMMIT_ID: uuid.uuid4().hex}


def commit_once(
    table: LakePlace, version: int, commit: Callable[[CommitProperties], object]
) -> None:
    """Make a version of a table: `commit` gets the properties of the commit, and makes it.

    The commit becomes this version, and no later one. If `commit` fails although the version is its
    commit, this function returns as if it had not failed.
    Raises: CommitFailedError if another commit made the version; DeltaError; OSError.
    """
    commit_id = make_commit_id()
    try:
        commit(CommitProperties(max_commit_retries=0, custom_metadata=commit_id))
    except (DeltaError, OSError):
        if not is_own_commit(table, version, commit_id):
            raise


def is_own_commit(table: LakePlace, version: int, commit_id: dict[str, str]) -> bool | None:
    """Whether a version of a table is the commit with an identifier; None if there is no version.

    Raises: OSError.
    """
    try:
        commit = (table / name_commit(version)).read_text()
    except FileNotFoundError:
        return None
    return commit_id[_COMMIT_ID] in commit
