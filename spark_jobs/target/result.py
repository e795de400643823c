"""The result of one table's merge."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jobs.lake.lake import Losses


@dataclass(frozen=True, slots=True)
class TableMergeResult:
    """A table's Delta version after a merge, its row count, and how many rows the merge changed.

    The key identifies a row: a row whose key came again, or whose position alone is new, counts as
    updated. If the merge replaces all rows, as after a TRUNCATE, all old rows count as deleted.
    `lossy` counts, for each column, the values that only `_raw` holds, because the column's type
    cannot.
    """

    version: int
    rows: int
    inserted: int
    updated: int
    deleted: int
    lossy: Losses
    seconds: float
