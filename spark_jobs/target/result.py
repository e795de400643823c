"""The result of one table's merge, and the ways of writing a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spark_jobs.lake.lake import Losses


class WritePlan(StrEnum):
    """How a merge writes a table."""

    NOTHING = "nothing"
    """No change: no commit."""
    MOVE_BOUND = "move_bound"
    """No row changes: a commit of the bound alone."""
    APPEND = "append"
    """Only new keys: files are added."""
    REWRITE = "rewrite"
    """Spark writes the table whole."""
    REWRITE_FILES = "rewrite_files"
    """Only the files that a change touches are written: by Arrow, or of a history by Spark."""
    MERGE = "merge"
    """Spark's MERGE by key."""


@dataclass(frozen=True, slots=True)
class TableMergeResult:
    """A table's Delta version after a merge, its row count, and how many rows the merge changed.

    A merge of a history counts in `inserted` the versions that began, and in `updated` those that
    ended. In all other targets, the key identifies a row: a row whose key came again, or whose
    position alone is new, counts as updated. If the merge replaces all rows, as after a TRUNCATE,
    all old rows count as deleted.
    `lossy` counts, for each column, the values that only `_raw` holds, because the column's type
    cannot. `way` is how the merge wrote the table. `refusal` says why Arrow could not rewrite
    files, if that was looked at.
    """

    version: int
    rows: int
    inserted: int
    updated: int
    deleted: int
    lossy: Losses
    seconds: float
    way: WritePlan
    refusal: str | None = None
