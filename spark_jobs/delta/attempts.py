"""Attempts to write a table. Each one names its files with its own identifier, and commits once.

Delta names the files of Spark's MERGE itself, so only maintenance finds those of a dead process.

A file gets its final name at once; only a commit makes it part of the table. A record in the folder
of the table says that the attempt runs. By it, the next merge removes what a dead process left
(`abandoned_attempts`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cdc_core.lake_layout import (
    ATTEMPTS,
    SPARK_FILES,
    identify_attempt,
    match_data_files,
    match_spark_folders,
    name_attempt,
    name_data_file,
    name_spark_folder,
)
from cdc_core.lake_storage.place import LakePlace


@dataclass(slots=True)
class Attempt:
    """An attempt to commit a version of a table. Spark tasks get copies of it.

    `committed` has the names of the files that it committed; None before that. `is_unclear` is True
    while nobody knows whether the storage has the commit: the files must stay. `may_have_unused`
    says that it may have files which its commit does not name.
    """

    table: LakePlace
    version: int
    identifier: str
    committed: Collection[str] | None = None
    is_unclear: bool = False
    may_have_unused: bool = False

    @property
    def record(self) -> LakePlace:
        """The file that says that this attempt runs."""
        return self.table / name_attempt(self.identifier)

    def name_file(self) -> LakePlace:
        """The place of a new data file."""
        return self.table / name_data_file(self.identifier, uuid.uuid4().hex[:16])

    def take_from_spark(self, write: Callable[[str], object]) -> list[LakePlace]:
        """Let Spark write Parquet files to the URI of a folder; give the files, in order.

        Readers do not see the folder. Afterwards the files are in the table's folder, under their
        final names. In an object store, `DirectCommitProtocol.scala` gives them these at once.
        Raises: OSError if Spark's files are gone, because another process took this one for dead.
        """
        folder = self.table / name_spark_folder(self.identifier, uuid.uuid4().hex[:16])
        # Spark may do a task twice.
        self.may_have_unused = True
        write(folder.uri)
        listed = folder / SPARK_FILES
        if listed.exists():
            files = [self.table / name for name in listed.read_text().split()]
        else:
            files = []
            # The name of the folder begins with the identifier of this attempt.
            for number, file in enumerate(sorted(folder.list_matching("*.parquet"))):
                files.append(self.table / name_data_file(folder.name, str(number)))
                file.move_to(files[-1])
        # Spark writes at least one file, for no rows too.
        if not files:
            raise OSError(f"another process has removed what Spark wrote to {folder}")
        folder.remove_folder()
        return files

    def list_files(self) -> list[LakePlace]:
        """The data files of this attempt in the table's folder."""
        return [*self.table.list_matching(match_data_files(self.identifier))]

    def remove_files(self, *, keep: Collection[str]) -> None:
        """Remove the files of this attempt, but keep those with some names. Raises: OSError."""
        for folder in self.list_spark_folders():
            folder.remove_folder()
        for file in self.list_files():
            if file.name not in keep:
                file.remove()

    def list_spark_folders(self) -> list[LakePlace]:
        """The folders that Spark wrote to. No commit names a file in them."""
        return [*(self.table / ATTEMPTS).list_matching(match_spark_folders(self.identifier))]


@contextmanager
def attempting(table: LakePlace, *, version: int) -> Iterator[Attempt]:
    """Attempt to commit a version of a table; after the block, remove the files it did not commit.

    These files stay if nobody knows whether the storage has the commit, or if the storage does not
    remove them. Then the record stays, too, if Spark's folders do.
    Raises: OSError.
    """
    attempt = Attempt(table, version, uuid.uuid4().hex)
    attempt.record.parent.make_folder()
    # After a power failure the record may be gone. Then maintenance removes the files later.
    attempt.record.write_text(json.dumps({"version": version}))
    try:
        yield attempt
    finally:
        if not attempt.is_unclear:
            with suppress(OSError):
                # To list the folder of a large table takes time.
                if attempt.committed is None or attempt.may_have_unused:
                    attempt.remove_files(keep=attempt.committed or ())
                # By the record, the next merge finds a folder that the storage did not remove.
                if not (attempt.may_have_unused and attempt.list_spark_folders()):
                    attempt.record.remove()


def read_attempt(record: LakePlace) -> Attempt | None:
    """Read the record of an attempt; None if it is not whole, as after a power failure.

    Raises: OSError.
    """
    try:
        version = int(json.loads(record.read_text())["version"])
    except (ValueError, KeyError, TypeError):
        return None
    return Attempt(record.parent.parent, version, identify_attempt(record.name))
