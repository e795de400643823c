"""The way of writing a table, for each combination of facts that decides it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.merge.write_plan import FoldFacts, WriteFacts, choose_write
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import WritePlan

LIMITS = MergeLimits(
    rewrite_entries=100, small_table_bytes=1_000, small_table_rows=50, unshared_reads=10
)
# A large table with a few changes of its rows, which Arrow can rewrite.
FACTS = WriteFacts(
    entries=20,
    reads=0,
    table_bytes=1_000_000,
    replaces_all=False,
    fills_new_columns=False,
    changes_schema=False,
    changes_mode=False,
    refusal=None,
)
REFUSED = replace(FACTS, refusal="the columns of the table change")
FOLD = FoldFacts(arrived=20, departed=0, sweeps_rows=False, only_adds=False)
NO_ROW = replace(FOLD, arrived=0)


def fold(facts: WriteFacts, outcome: FoldFacts = FOLD, **changes: object) -> WriteFacts:
    return replace(facts, fold=outcome, **changes)  # type: ignore[arg-type]  # By name.


# Each case differs in one fact from a case of another way.
CASES: dict[str, tuple[WriteFacts, WritePlan | None]] = {
    "no entry": (replace(FACTS, entries=0), WritePlan.NOTHING),
    "few changes of rows": (FACTS, WritePlan.REWRITE_FILES),
    "as many entries as Arrow takes": (replace(FACTS, entries=100), WritePlan.REWRITE_FILES),
    "more entries than Arrow takes": (replace(FACTS, entries=101), None),
    "more entries, folded": (fold(FACTS, entries=101), WritePlan.MERGE),
    "fewer reads than go to their own files": (replace(FACTS, reads=9), WritePlan.REWRITE_FILES),
    "as many reads as go to their own files": (replace(FACTS, reads=10), None),
    "many reads of a small table": (
        replace(FACTS, reads=10, table_bytes=999),
        WritePlan.REWRITE_FILES,
    ),
    "many reads of a table that is just not small": (
        replace(FACTS, reads=10, table_bytes=1_000),
        None,
    ),
    "Arrow refuses": (REFUSED, None),
    "a TRUNCATE": (replace(FACTS, replaces_all=True), None),
    "a TRUNCATE, folded": (fold(FACTS, replaces_all=True), WritePlan.REWRITE),
    "a TRUNCATE that leaves no row": (fold(FACTS, NO_ROW, replaces_all=True), WritePlan.REWRITE),
    "a new column with a value for old rows": (replace(FACTS, fills_new_columns=True), None),
    "the same, folded": (fold(FACTS, fills_new_columns=True), WritePlan.REWRITE),
    "the same without a row": (fold(FACTS, NO_ROW, fills_new_columns=True), WritePlan.REWRITE),
    "a new column": (replace(FACTS, changes_schema=True), None),
    "a new column, folded": (fold(FACTS, changes_schema=True), WritePlan.MERGE),
    "a new column without a row": (fold(FACTS, NO_ROW, changes_schema=True), WritePlan.MERGE),
    "rows arrive": (fold(REFUSED), WritePlan.MERGE),
    "keys depart": (fold(REFUSED, replace(NO_ROW, departed=1)), WritePlan.MERGE),
    "a sweep removes rows": (fold(REFUSED, replace(NO_ROW, sweeps_rows=True)), WritePlan.MERGE),
    "no row changes": (fold(REFUSED, NO_ROW), WritePlan.MOVE_BOUND),
    "only new keys": (fold(REFUSED, replace(FOLD, only_adds=True)), WritePlan.APPEND),
    "only new keys after a TRUNCATE": (
        fold(REFUSED, replace(FOLD, only_adds=True), replaces_all=True),
        WritePlan.APPEND,
    ),
    "a small table": (fold(REFUSED, table_bytes=999), WritePlan.REWRITE),
    "a table that is just not small": (fold(REFUSED, table_bytes=1_000), WritePlan.MERGE),
    "a table that is small beside what arrives": (
        fold(REFUSED, replace(FOLD, arrived=100), table_bytes=1_999),
        WritePlan.REWRITE,
    ),
    "a table that is just too large beside what arrives": (
        fold(REFUSED, replace(FOLD, arrived=100), table_bytes=2_000),
        WritePlan.MERGE,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_way_of_writing_follows_from_the_facts(case: str) -> None:
    facts, way = CASES[case]
    assert choose_write(facts, LIMITS) is way


def test_the_cases_cover_every_way() -> None:
    assert {way for _, way in CASES.values()} == {None, *WritePlan}
