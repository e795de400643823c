"""What a merge tells of one table."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jobs.lake import Losses


@dataclass(frozen=True, slots=True)
class Merged:
    """A table's Delta version after a merge, its rows there, and how many rows the merge touched.

    `lossy` says by column how many values of the table `_raw` alone holds, for its type could not.
    A key identifies a row: one that came again, or moved its position alone, is updated. A
    TRUNCATE deletes all that were there.
    """

    version: int
    rows: int
    inserted: int
    updated: int
    deleted: int
    lossy: Losses
    seconds: float
