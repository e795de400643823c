"""The ledgers of the lake: small tables that several processes append to. Their rows have an order.

The order is the order of the commits, not of a clock. Each row has the number of the commit that
added it, and compaction keeps this number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from cdc_core.lake_layout import CHECKPOINT_PROPERTIES, name_commit
from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.delta_tables import choose_checkpoints, is_delta, open_delta
from cdc_core.lake_storage.durability import make_durable, rewrite_commits
from cdc_core.lake_storage.own_commits import is_own_commit, make_commit_id
from cdc_core.lake_storage.place import LakePlace

# If several processes append at once, one commit succeeds, and the others try again.
_TRIES = 200
# A ledger is written without its old rows if they are at least a tenth of it.
_MAX_KEPT_SHARE = 0.9


def append_numbered(
    folder: LakePlace,
    rows: Sequence[Mapping[str, object]],
    schema: pa.Schema,
    *,
    force: Callable[..., None] = make_durable,
) -> None:
    """Append rows in one durable commit; set `number` of each to the commit's number.

    `force` forces the files of the commit to the disk. Raises: DeltaError; OSError; what `force`
    raises.
    """
    # All tries have one identifier: a try that seemed to fail may have been committed.
    commit_id = make_commit_id()
    for _ in range(_TRIES):
        version = _try_append(folder, rows, schema, commit_id)
        if version is not None:
            force(folder, above=version - 1, through=version)
            return
    raise CommitFailedError(
        f"{folder.name}: other processes committed first in each of {_TRIES} tries"
    )


def find_newest(
    folder: LakePlace,
    schema: pa.Schema,
    is_wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> dict[str, Any] | None:
    """Find the wanted row of a ledger that was added last; None if there is none.

    This opens the newest files of the ledger only, as many as it needs.
    Raises: DeltaError; OSError; ArrowException.
    """
    if not is_delta(folder):
        return None
    files = pa.table(open_delta(folder).get_add_actions(flatten=True))
    newest: dict[str, Any] | None = None
    for file in files.sort_by([("max.number", "descending")]).to_pylist():
        if newest is not None and newest["number"] > file["max.number"]:
            break
        with open_input(folder / unquote(file["path"])) as source:
            rows = filter(is_wanted, pq.read_table(source, schema=schema).to_pylist())
        found = [*rows, *([newest] if newest else [])]
        newest = max(found, key=lambda row: int(row["number"]), default=None)
    return newest


def drop_rows(
    folder: LakePlace,
    schema: pa.Schema,
    choose: Callable[[Sequence[dict[str, Any]]], Sequence[dict[str, Any]]],
) -> None:
    """Keep only the chosen rows of a ledger, with their numbers, in one durable commit.

    Nothing changes if less than a tenth of the rows would go, or if another process commits at the
    same time. Raises: DeltaError; OSError.
    """
    if not is_delta(folder):
        return
    ledger = open_delta(folder)
    rows = ledger.to_pyarrow_table().to_pylist()
    chosen = choose(rows)
    if len(chosen) > _MAX_KEPT_SHARE * len(rows):
        return
    rewrite_newest_commit(folder)
    replace_rows(ledger, folder, chosen, schema)


def rewrite_newest_commit(folder: LakePlace) -> None:
    """Write the newest commit of a ledger, if it exists, to new files, durably.

    The disk may have refused the commit of a process that has ended. Linux reports that only once.
    Raises: DeltaError; OSError.
    """
    if is_delta(folder):
        newest = open_delta(folder).version()
        rewrite_commits(folder, above=newest - 1, through=newest)


def replace_rows(
    ledger: DeltaTable,
    folder: LakePlace,
    rows: Sequence[Mapping[str, object]],
    schema: pa.Schema,
    *,
    force: Callable[..., None] = make_durable,
) -> bool:
    """Write a ledger's rows, with their numbers, in place of those of the open version, durably.

    Return False if another process committed since, or if nobody knows yet whether this succeeded.
    Raises: DeltaError; OSError; what `force` raises.
    """
    version, commit_id = ledger.version() + 1, make_commit_id()
    try:
        write_deltalake(
            ledger,
            pa.Table.from_pylist([*rows], schema=schema),
            mode="overwrite",
            commit_properties=CommitProperties(max_commit_retries=0, custom_metadata=commit_id),
        )
    except CommitFailedError:
        if not is_own_commit(folder, version, commit_id):
            return False
    force(folder, above=version - 1, through=version)
    return True


def _try_append(
    folder: LakePlace,
    rows: Sequence[Mapping[str, object]],
    schema: pa.Schema,
    commit_id: dict[str, str],
) -> int | None:
    """Append rows and return the version; None if another commit came between.

    Create the ledger if it does not exist.
    """
    try:
        ledger: DeltaTable | None = open_delta(folder)
    except TableNotFoundError:
        ledger = None
    number = 0 if ledger is None else ledger.version() + 1
    numbered = pa.Table.from_pylist([{**row, "number": number} for row in rows], schema=schema)
    once = CommitProperties(max_commit_retries=0, custom_metadata=commit_id)
    try:
        if ledger is None:
            write_deltalake(
                folder.uri,
                numbered,
                mode="error",
                configuration=CHECKPOINT_PROPERTIES | choose_checkpoints(folder),
                storage_options=folder.find_options(),
                commit_properties=once,
            )
        else:
            write_deltalake(ledger, numbered, mode="append", commit_properties=once)
    except (DeltaError, OSError) as error:
        if is_own_commit(folder, number, commit_id):
            return number
        if isinstance(error, CommitFailedError):
            return None
        # Another process may have made the table since we looked. Or this process was paused, and
        # maintenance has removed the version that it extends.
        is_gone = ledger is not None and not (folder / name_commit(number - 1)).exists()
        if not is_gone and (ledger is not None or not is_delta(folder)):
            raise
        return None
    return number
