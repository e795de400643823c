"""Follows the newest commits of a Delta table by its log files, without opening the table again."""

from __future__ import annotations

import json
from collections.abc import Iterator

from deltalake import DeltaTable

from cdc_core.lake_storage.durability import locate_commit
from cdc_core.lake_storage.place import LakePlace


class Commits:
    """The commits to one table from the creation of this object on."""

    def __init__(self, folder: LakePlace) -> None:
        """Begin after the newest commit; the table need not exist yet. Raises: DeltaError."""
        self._folder = folder
        is_there = DeltaTable.is_deltatable(folder.uri)
        self._version = DeltaTable(folder.uri).version() if is_there else -1

    def read_added(self) -> Iterator[LakePlace]:
        """The files that commits added since the last call, in order. Raises: OSError.

        Source: the Delta protocol, sections Delta Log Entries and Add File and Remove File.
        """
        while (commit := locate_commit(self._folder, self._version + 1)).exists():
            for line in commit.read_text().splitlines():
                if (added := json.loads(line).get("add")) is not None:
                    yield self._folder / added["path"]
            self._version += 1
