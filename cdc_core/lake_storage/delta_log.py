"""Reads which files each version of a Delta table has, from the table's own log.

delta-rs and Spark would open the whole table for each version. This reads only the names of the
data files and of the deletion vectors.

Source: the Delta protocol, sections Delta Log Entries, Checkpoints, Add File and Remove File.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_layout import DELTA_LOG, name_version_checksum
from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.durability import name_deletions
from cdc_core.lake_storage.place import LakePlace, ListedFile

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
# Checkpoints in several files, or named by a UUID. Walgate writes neither.
_OTHER_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..+\.(parquet|json)")


class UnknownCheckpoint(Exception):
    """The log of a table has a checkpoint of a form that this module does not read."""


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The commits and checkpoints of a table, by version, in order."""

    table: LakePlace
    commits: Mapping[int, ListedFile]
    checkpoints: Mapping[int, ListedFile]

    @classmethod
    def list(cls, table: LakePlace) -> DeltaLog:
        """List the log of a table. Raises: UnknownCheckpoint, OSError."""
        commits: dict[int, ListedFile] = {}
        checkpoints: dict[int, ListedFile] = {}
        for file in sorted((table / DELTA_LOG).list_files(), key=lambda file: file.name):
            if (found := _COMMIT.fullmatch(file.name)) is not None:
                commits[int(found[1])] = file
            elif (found := _CHECKPOINT.fullmatch(file.name)) is not None:
                checkpoints[int(found[1])] = file
            elif _OTHER_CHECKPOINT.fullmatch(file.name):
                raise UnknownCheckpoint(file.name)
        return cls(table, commits, checkpoints)

    @property
    def newest(self) -> int:
        """The newest version. Raises: ValueError if nobody can read it."""
        newest = max([*self.commits, *self.checkpoints], default=None)
        if newest is None or newest not in self.commits or self.list_commits(newest) is None:
            raise ValueError("its newest version cannot be read")
        return newest

    def find_base(self, version: int) -> int | None:
        """The newest checkpoint at or below a version; None without one."""
        bases = list(self.checkpoints)  # In order.
        place = bisect_right(bases, version)
        return bases[place - 1] if place else None

    def list_commits(self, version: int) -> range | None:
        """The commits that must be read on top of `find_base` to get a version.

        None if one of them is gone, so that nobody can read the version.
        """
        base = self.find_base(version)
        above = range(0 if base is None else base + 1, version + 1)
        return above if all(number in self.commits for number in above) else None

    def list_names(self, version: int) -> set[str]:
        """The names of the files in the log that a reader of a version needs: checksums, too."""
        above, base = self.list_commits(version), self.find_base(version)
        if above is None:
            return set()
        own = [*above] if base is None else [base, *above]
        checkpoint = set() if base is None else {self.checkpoints[base].name}
        commits = {self.commits[number].name for number in own if number in self.commits}
        return checkpoint | commits | {name_version_checksum(number) for number in own}

    def read_files(self, versions: Iterable[int]) -> set[str]:
        """The names of all files that some versions have: data files and deletion vectors.

        A version that nobody can read has none. Raises: UnknownCheckpoint, OSError.
        """
        found: set[str] = set()
        # `added` are data files that came, or got another vector, after the last of these versions.
        state, added, at = dict[str, str | None](), set[str](), -1
        for version in sorted(versions):
            above = self.list_commits(version)
            if above is None:
                continue
            base = self.find_base(version)
            if base is not None and base > at:
                state, at = _read_checkpoint(self._locate(self.checkpoints[base])), base
                added = set(state)
            for number in range(at + 1, version + 1):
                added |= _apply_commit(state, self._locate(self.commits[number]).read_text())
            at = version
            for name in added & state.keys():
                found.update(file for file in (name, state[name]) if file is not None)
            added.clear()
        return found

    def read_removed(self) -> dict[str, int]:
        """The files that the commits removed, each with the time of its commit. Raises: OSError."""
        removed = dict[str, int]()
        for file in self.commits.values():
            for action in _read_actions(self._locate(file).read_text()):
                if (one := action.get("remove")) is not None:
                    names = _name_file(one["path"]), name_deletions(one.get("deletionVector"))
                    removed |= {name: file.modified_us for name in names if name is not None}
        return removed

    def _locate(self, file: ListedFile) -> LakePlace:
        return self.table / DELTA_LOG / file.name


def _read_checkpoint(file: LakePlace) -> dict[str, str | None]:
    """The data files of a checkpoint, each with the file of its deletion vector."""
    with open_input(file) as source, pq.ParquetFile(source) as parquet:
        fields = parquet.schema_arrow
        own = {field.name for field in fields.field("add").type}
        columns = ["add.path", *(["add.deletionVector"] if "deletionVector" in own else [])]
        if (
            "sidecar" in fields.names
            and pc.any(parquet.read(["sidecar"])["sidecar"].is_valid()).as_py()
        ):
            raise UnknownCheckpoint(file.name)
        rows = parquet.read(columns).to_pylist()
    return {
        _name_file(row["add"]["path"]): name_deletions(row["add"].get("deletionVector"))
        for row in rows
        if row["add"] is not None and row["add"]["path"] is not None
    }


def _apply_commit(state: dict[str, str | None], text: str) -> set[str]:
    """Apply the actions of a commit; return the data files that it added, or gave another vector.

    The actions have no order: a commit may remove a file and add it with another vector.
    """
    actions = _read_actions(text)
    for action in actions:
        if "remove" in action:
            state.pop(_name_file(action["remove"]["path"]), None)
    added = {_name_file(one["add"]["path"]): one["add"] for one in actions if "add" in one}
    state |= {name: name_deletions(add.get("deletionVector")) for name, add in added.items()}
    return set(added)


def _read_actions(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line]


def _name_file(path: str) -> str:
    return unquote(path)
