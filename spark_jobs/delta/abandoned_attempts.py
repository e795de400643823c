"""Removes what dead processes left of their attempts to write a table.

A process that looks dead may only be paused: its lock in an object store is a lease, which ends. If
the attempt has files, a commit without a change takes its version before they go. Delta then
refuses the process if it wakes. If the attempt has no files, nobody takes its version. Its process
may still wake, write files and commit them, and that is correct.
"""

from __future__ import annotations

from collections.abc import Sequence

from deltalake import DeltaTable

from cdc_core.lake_layout import ATTEMPTS, RECORDS, name_commit
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.attempts import Attempt, read_attempt
from spark_jobs.delta.committer import take_version
from spark_jobs.delta.direct_parquet import allows_direct_commits
from spark_jobs.lake.lake import Epoch, open_table


def clear_attempts(table: LakePlace, epochs: Sequence[Epoch]) -> bool:
    """Remove what dead processes left; return whether they left anything. `epochs` are all epochs.

    The caller must hold the table's lock. The table may get a new version, which changes no row.
    Raises: DeltaError if another process commits; MergeError if the disk refuses it; OSError.
    """
    records = [*(table / ATTEMPTS).list_matching(RECORDS)]
    for record in records:
        attempt = read_attempt(record)
        if attempt is None or _clear(attempt, open_table(table), epochs):
            record.remove()
    return bool(records)


def _clear(attempt: Attempt, table: DeltaTable | None, epochs: Sequence[Epoch]) -> bool:
    """Remove the files of an attempt that no commit names; return whether it is over.

    The files are listed only once. Files that appear later are of a process that woke. They stay.
    """
    files, folders = attempt.list_files(), attempt.list_spark_folders()
    if table is None or not (files or folders):
        return True
    newest = table.version()
    if newest < attempt.version:
        if not allows_direct_commits(table):
            # Only Spark may commit to this table. Wait until a commit has this version.
            return False
        take_version(attempt.table, table, epochs)
        newest += 1
    # A process that wakes now commits nothing, whatever it still finds in the folders.
    for folder in folders:
        folder.remove_folder()
    if attempt.list_spark_folders():
        return False
    committed = _read_commits(attempt.table, range(attempt.version, newest + 1))
    # If the file of a commit is missing, nobody knows which files it named, so all of them stay.
    # Maintenance removes those that no needed version has.
    if committed is not None:
        for file in files:
            if file.name not in committed:
                file.remove()
    return True


def _read_commits(table: LakePlace, versions: range) -> str | None:
    """The text of some commits; None if one is missing."""
    try:
        return "".join((table / name_commit(version)).read_text() for version in versions)
    except FileNotFoundError:
        return None
