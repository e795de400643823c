"""Follows the newest commits of a Delta table by its log files, without opening the table again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from cdc_core.errors import Retry, StagingError
from cdc_core.lake_layout import DELTA_LOG, LAST_CHECKPOINT
from cdc_core.lake_storage.delta_tables import is_delta, open_delta
from cdc_core.lake_storage.durability import locate_commit
from cdc_core.lake_storage.place import LakePlace


class CommitsGone(StagingError):
    """A commit, or a file that it added, was removed before somebody read it."""

    def __init__(self, what: str) -> None:
        """Name the commit or the file."""
        super().__init__(
            f"{what} was removed before it was read",
            fix="nothing: the next try begins after the newest commit",
            retry=Retry.LATER,
        )


class Commits:
    """The commits to one table from the creation of this object on."""

    def __init__(self, folder: LakePlace) -> None:
        """Begin after the newest commit; the table need not exist yet. Raises: DeltaError."""
        self._folder = folder
        is_there = is_delta(folder)
        self._version = open_delta(folder).version() if is_there else -1

    def read_added(self) -> Iterator[LakePlace]:
        """The files with new rows that commits added since the last call, in order.

        A commit that only writes old rows to new files, such as a compaction, adds none.
        Raises: OSError; CommitsGone if the commits that follow are gone.
        Source: the Delta protocol, sections Delta Log Entries and Add File and Remove File.
        """
        while (commit := locate_commit(self._folder, self._version + 1)).exists():
            for line in commit.read_text().splitlines():
                added = json.loads(line).get("add")
                if added is not None and added["dataChange"]:
                    yield self._folder / added["path"]
            self._version += 1
        # If this process was paused for long, what it would read next may have been removed.
        if self._read_checkpoint() > self._version and not commit.exists():
            raise CommitsGone(f"commit {self._version + 1} of {self._folder}")

    def _read_checkpoint(self) -> int:
        """The version of the newest checkpoint; -1 without one."""
        with suppress(FileNotFoundError, ValueError):
            text = (self._folder / DELTA_LOG / LAST_CHECKPOINT).read_text()
            return int(json.loads(text)["version"])
        return -1
