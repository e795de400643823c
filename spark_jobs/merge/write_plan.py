"""Chooses the way in which a merge writes a table.

The merge calls `choose_write` first with the numbers of changes and the size of the table. If Arrow
can rewrite files, nothing else is needed. Otherwise Spark folds the changes, and the merge calls it
again with the counts of the fold.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan


@dataclass(frozen=True, slots=True)
class FoldFacts:
    """What the fold of a table plan shows.

    `arrived` counts the changed keys that have a row at the end, `departed` those that have none.
    `sweeps_rows`: a sweep removes a row of the table. `only_adds`: the table has no row with a key
    of the changes, and the changes are mostly reads of a backfill that no other change touches.
    """

    arrived: int
    departed: int
    sweeps_rows: bool
    only_adds: bool


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """What decides how a table is written.

    `entries` and `reads` count the table's log entries and the reads of a backfill among them.
    `replaces_all`: all old rows are replaced (the table is new, or a TRUNCATE came).
    `fills_new_columns`: old rows get the value of a new column. `changes_schema`: the table gets
    other columns. `changes_mode`: the settings ask for another mode than the table has. `refusal`:
    why Arrow cannot rewrite files; None if Arrow may try. `fold` is None before the fold.
    """

    entries: int
    reads: int
    table_bytes: int
    replaces_all: bool
    fills_new_columns: bool
    changes_schema: bool
    changes_mode: bool
    refusal: str | None
    fold: FoldFacts | None = None


def choose_write(facts: WriteFacts, limits: MergeLimits) -> WritePlan | None:
    """Choose how to write a table; None if the changes must be folded first.

    The ways are tried in this order, and the first that fits is taken.
    """
    if facts.entries == 0 and not facts.changes_mode:
        return WritePlan.NOTHING
    if _can_rewrite_files(facts, limits):
        return WritePlan.REWRITE_FILES
    return None if facts.fold is None else _choose_by_fold(facts, facts.fold, limits)


def _choose_by_fold(facts: WriteFacts, fold: FoldFacts, limits: MergeLimits) -> WritePlan:
    if fold.only_adds:
        return WritePlan.APPEND
    must_write_all = facts.replaces_all or facts.fills_new_columns or facts.changes_mode
    changes_rows = fold.arrived > 0 or fold.departed > 0 or fold.sweeps_rows
    if not must_write_all and not changes_rows and not facts.changes_schema:
        return WritePlan.MOVE_BOUND
    if must_write_all or _is_small(facts.table_bytes, fold.arrived, limits):
        return WritePlan.REWRITE
    return WritePlan.MERGE


def _can_rewrite_files(facts: WriteFacts, limits: MergeLimits) -> bool:
    """Whether Arrow may rewrite the files of a table that its changes touch.

    Many reads of a large table are appended as new files instead.
    """
    is_small_table = facts.table_bytes < limits.small_table_bytes
    changes_columns = facts.fills_new_columns or facts.changes_schema or facts.changes_mode
    return (
        facts.refusal is None
        and not (facts.replaces_all or changes_columns)
        and facts.entries <= limits.rewrite_entries
        and (is_small_table or facts.reads < limits.unshared_reads)
    )


def _is_small(table_bytes: int, arrived: int, limits: MergeLimits) -> bool:
    """Whether writing a table whole is cheaper than a MERGE of `arrived` rows."""
    return table_bytes < limits.small_table_bytes * max(1, arrived / limits.small_table_rows)
