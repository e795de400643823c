"""The ledgers of the lake: small tables that several processes append to. Their rows have an order.

The order is the order of the commits, not of a clock. Each row has the number of the commit that
added it, and compaction keeps this number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from cdc_core.lake_layout import SHORT_CHECKPOINTS, name_commit
from cdc_core.lake_storage.durability import make_durable
from cdc_core.lake_storage.place import LakePlace

# If several processes append at once, one commit succeeds, and the others try again.
_TRIES = 200


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
    for _ in range(_TRIES):
        version = _try_append(folder, rows, schema)
        if version is not None:
            force(folder, above=version - 1, through=version)
            return
    raise CommitFailedError(
        f"{folder.name}: other processes committed first in each of {_TRIES} tries"
    )


def _try_append(
    folder: LakePlace, rows: Sequence[Mapping[str, object]], schema: pa.Schema
) -> int | None:
    """Append rows and return the version; None if another commit came between.

    Create the ledger if it does not exist.
    """
    try:
        ledger: DeltaTable | None = DeltaTable(folder.uri)
    except TableNotFoundError:
        ledger = None
    number = 0 if ledger is None else ledger.version() + 1
    numbered = pa.Table.from_pylist([{**row, "number": number} for row in rows], schema=schema)
    once = CommitProperties(max_commit_retries=0)
    try:
        if ledger is None:
            write_deltalake(
                folder.uri,
                numbered,
                mode="error",
                configuration=SHORT_CHECKPOINTS,
                commit_properties=once,
            )
        else:
            write_deltalake(ledger, numbered, mode="append", commit_properties=once)
    except CommitFailedError:
        return None
    except DeltaError:
        # Another process may have made the table since we looked. Or this process was paused, and
        # maintenance has removed the version that it extends.
        is_gone = ledger is not None and not (folder / name_commit(number - 1)).exists()
        if not is_gone and (ledger is not None or not DeltaTable.is_deltatable(folder.uri)):
            raise
        return None
    return number
