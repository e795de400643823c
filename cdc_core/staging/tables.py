"""Opens the Delta tables of the log; reads and changes the small ones."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from cdc_core.errors import Retry, StagingError
from cdc_core.lake_layout import CHECKPOINT_PROPERTIES, DELTA_LOG
from cdc_core.lake_storage.delta_tables import choose_checkpoints, open_delta
from cdc_core.lake_storage.durability import make_durable, rewrite_commits
from cdc_core.lake_storage.own_commits import commit_once
from cdc_core.lake_storage.place import LakePlace
from cdc_core.staging.parts import STATISTICS_COLUMNS
from cdc_core.vocabulary import Lsn

# A checkpoint stalls the commit that writes it. On a disk, one in a hundred keeps opening cheap.
STAGING_PROPERTIES: dict[str, str | None] = {
    "delta.checkpointInterval": "100",
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS_COLUMNS),
    **CHECKPOINT_PROPERTIES,
}


def open_table(folder: LakePlace, schema: pa.Schema) -> DeltaTable:
    """Open a table of the log at its newest version; create it if it is missing."""
    with staging_errors(f"open {folder.name}"):
        try:
            return open_delta(folder)
        except TableNotFoundError:
            folder.make_folder()
            # Another process may have made the table first. Or the store made the commit, and its
            # reply was lost. With retries, delta-rs would commit the creation once more.
            with suppress(CommitFailedError):
                DeltaTable.create(
                    folder.uri,
                    schema=schema,
                    mode="ignore",
                    configuration=STAGING_PROPERTIES | choose_checkpoints(folder),
                    storage_options=folder.find_options(),
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            table = open_delta(folder)
            make_durable(folder, above=-1, through=0)
            return table


def require_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Refuse the log of an earlier version of Walgate. Raises: StagingError."""
    found = {field.name for field in table.schema().fields}
    missing = [name for name in schema.names if name not in found]
    if missing:
        raise StagingError(
            f"the log is of an earlier version of Walgate: it lacks the column {missing[0]}",
            fix="begin a new lake under another [lake] root, with a new slot",
            retry=Retry.AFTER_FIX,
        )


def reopen_table(folder: LakePlace) -> DeltaTable:
    """Open an existing table at its newest version.

    Raises: StagingError if it is missing. A new table in its place would hide the loss.
    """
    with staging_errors(f"open {folder.name}"):
        return open_delta(folder)


def read_version(folder: LakePlace) -> int:
    """The newest version of an existing table. Raises: StagingError."""
    return reopen_table(folder).version()


def rewrite_newest(folder: LakePlace, newest: int) -> None:
    """Write the files of a table's newest commit to new files, durably. Raises: StagingError.

    The process that made the commit may have ended before the disk had it, or because the disk
    refused it.
    """
    with staging_errors(f"write {folder.name}"):
        rewrite_commits(folder, above=newest - 1, through=newest)


def read_rows(table: DeltaTable) -> list[dict[str, Any]]:
    """All rows of a small table of the log, epochs or relations, at its newest version."""
    with staging_errors("read the log's own tables"):
        table.update_incremental()
        rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return rows


def append_rows(table: DeltaTable, folder: LakePlace, rows: pa.Table) -> None:
    """Append to a small table of the log durably.

    Raises: StagingError, also if another commit came between.
    """
    with staging_errors(f"write {folder.name}"):
        if not (folder / DELTA_LOG).is_folder():
            # If the volume is not mounted, Delta would create an empty table in this place.
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", folder.uri)

        def append(properties: CommitProperties) -> None:
            # The table of an earlier version of Walgate lacks newer columns.
            write_deltalake(
                table, rows, mode="append", schema_mode="merge", commit_properties=properties
            )

        _extend(table, folder, append)


def delete_rows(table: DeltaTable, folder: LakePlace, *, epoch: int, since: Lsn) -> None:
    """Delete the relations of an epoch from a commit LSN on, durably. Raises: StagingError."""
    with staging_errors(f"write {folder.name}"):
        gone = f"epoch = {epoch} and first_lsn >= {int(since)}"

        def delete(properties: CommitProperties) -> None:
            table.delete(gone, commit_properties=properties)

        _extend(table, folder, delete)


def _extend(
    table: DeltaTable, folder: LakePlace, commit: Callable[[CommitProperties], object]
) -> None:
    """Let `commit` extend an open table durably. Raises: DeltaError, OSError."""
    extended = table.version() + 1
    commit_once(folder, extended, commit)
    make_durable(folder, above=extended - 1, through=extended)
    if table.version() != extended:
        # The store made the commit, but `commit` got no reply, so it did not open the version.
        table.load_as_version(extended)


@contextmanager
def staging_errors(doing: str) -> Iterator[None]:
    """Turn storage errors into a StagingError that names the operation."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as exc:
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise StagingError(
            f"cannot {doing}: {reason}",
            fix="check that the lake's storage is up, writable and not full",
            retry=Retry.LATER,
        ) from exc
