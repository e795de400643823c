"""Finds tables of the lake whose own files cannot be read. All other tables stay usable.

After a power failure, a commit or a data file that it names may be torn. A person may restore only
a part of a folder. Walgate makes everything in a table's folder from the log. So the remedy is to
delete the folder: a merge builds the table again, and queues a backfill if the log lacks changes.
"""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_storage.arrow_files import read_footer
from cdc_core.lake_storage.delta_log import DeltaLog, UnknownCheckpoint
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake.lake import open_table


class UnreadableTable(LakeError):
    """A table that nobody can read until a person does what `fix` says."""


def open_current(folder: LakePlace) -> DeltaTable | None:
    """Open a table of the lake at its newest version; None if it does not exist.

    Raises: UnreadableTable.
    """
    try:
        try:
            return open_table(folder)
        except DeltaError:
            # delta-rs does not say whether the log is damaged, or the storage failed.
            _read_log(folder)
            return open_table(folder)
    except DeltaError as error:
        raise _require_new_folder(folder, "its Delta log cannot be opened", error) from error
    except OSError as error:
        raise UnreadableTable(
            f"the Delta log in {folder} cannot be opened: {_name(error)}",
            fix="check that the lake's storage is up, and that this user may read the folder",
            retry=Retry.AFTER_FIX,
        ) from error


def _read_log(folder: LakePlace) -> None:
    """Read what delta-rs reads to open a table. Raises: OSError if the storage fails."""
    try:
        log = DeltaLog.list(folder)
        log.read_files([log.newest])
    except OSError as error:
        if _is_of_storage(error):
            raise
    except (UnknownCheckpoint, ValueError, KeyError, TypeError, pa.ArrowException):
        pass  # The log is damaged, or has a form that only delta-rs reads.


def open_if_readable(folder: LakePlace) -> DeltaTable | None:
    """Open a table of the lake at its newest version; None if that is not possible."""
    try:
        return open_current(folder)
    except UnreadableTable:
        return None


def find_torn(folder: LakePlace) -> UnreadableTable | None:
    """Find a data file of a table's newest version that is missing or torn.

    None if all files are whole, or if the storage does not give one of them now. Only the size and
    the footer of a file are read, so damage in the middle of a file is not found.
    """
    table = open_if_readable(folder)
    if table is None:
        return None
    files = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
    for named in files:
        file = folder / unquote(named["path"])
        what = f"data file {file.name} of version {table.version()} is missing or damaged"
        try:
            read_footer(file)
            size = file.read_size()
        except (OSError, pa.ArrowException) as error:
            return None if _is_of_storage(error) else _require_new_folder(folder, what, error)
        if size != named["size_bytes"]:
            return _require_new_folder(
                folder, what, ValueError(f"expected {named['size_bytes']} bytes, found {size}")
            )
    return None


def _is_of_storage(error: Exception) -> bool:
    """Whether the storage failed, which says nothing about the file that was read.

    If Arrow cannot decode a file, it may raise OSError too, without a number.
    """
    is_numbered = isinstance(error, OSError) and error.errno is not None
    return is_numbered and not isinstance(error, FileNotFoundError)


def _require_new_folder(folder: LakePlace, what: str, error: Exception) -> UnreadableTable:
    return UnreadableTable(
        f"{what} ({_name(error)})",
        fix=f"restore {folder} from a copy of the lake; if there is no copy, delete {folder},"
        " then run `walgate merge`: it builds the table again from the log, and queues a backfill"
        " if the log lacks changes. Deleted rows and entries that the log no longer has go with the"
        " folder",
        retry=Retry.AFTER_FIX,
    )


def _name(error: Exception) -> str:
    """Return the printable part of an error's first line; the error's type if that is empty."""
    line = (str(error).strip().splitlines() or [""])[0]
    return "".join(filter(str.isprintable, line)) or type(error).__name__
