"""Compacts the ledgers: every append leaves a file, and readers open all of them."""

from __future__ import annotations

from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import open_table
from spark_jobs.lake.ledger import rewrite_newest_commit

_MAX_FILES = 20


def compact_ledger(ledger: LakePlace) -> None:
    """Write a ledger's rows to few files, unless another process commits at the same time.

    The rows keep their numbers. Raises: MergeError if the storage refuses.
    """
    table = open_table(ledger)
    if table is None or len(table.file_uris()) <= _MAX_FILES:
        return
    rewrite_newest_commit(ledger)
    before = table.version()
    try:
        table.optimize.compact(commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError:
        return
    require_durable(ledger, above=before, through=table.version())
