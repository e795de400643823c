"""Follows the newest commits of a Delta table by its log files, without opening the table again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from deltalake import DeltaTable

from cdc_core.durability import locate_commit


class Commits:
    """The commits to one table from the creation of this object on."""

    def __init__(self, folder: Path) -> None:
        """Begin after the newest commit; the table need not exist yet. Raises: DeltaError."""
        self._folder = folder
        is_there = DeltaTable.is_deltatable(str(folder))
        self._version = DeltaTable(folder).version() if is_there else -1

    def read_added(self) -> Iterator[Path]:
        """The files that commits added since the last call, in order. Raises: OSError.

        Source: the Delta protocol, sections Delta Log Entries and Add File and Remove File.
        """
        while (commit := locate_commit(self._folder, self._version + 1)).exists():
            for line in commit.read_text(encoding="utf-8").splitlines():
                if (added := json.loads(line).get("add")) is not None:
                    yield self._folder / added["path"]
            self._version += 1
