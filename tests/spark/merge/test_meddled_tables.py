"""Tables that others maintain or write to: each is merged, or kept apart from the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.settings import TableSettings
from spark_jobs.lake.lake import count_rows, open_table
from spark_jobs.lake.ledger import find_cut
from spark_jobs.merge import merge_by_key
from spark_jobs.target.result import WritePlan
from tests.spark.relations import delete, insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SPARK_ONLY, SmallLake

T, OTHER = make_relation("t", "k int4, v text"), make_relation("other", "k int4")


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Lend a session that compacts two files, where a table asks for it."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    return session


@pytest.fixture
def small(session: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a table that is merged into, beside another one.

    With deletion vectors a merge adds a file, so that there is something to compact.
    """
    made = SmallLake(session, tmp_path, limits=MERGE_ONLY)
    made.lake = replace(made.lake, rules={"public.t": TableSettings(deletion_vectors=True)})
    made.merge([insert(T, str(k), "a") for k in (1, 2, 3)], [insert(OTHER, "1")])
    return made


def run(small: SmallLake, statement: str) -> None:
    small.spark.sql(statement.format(f"delta.`{small.lake.locate(T.table)}`"))


def find_operations(small: SmallLake) -> list[str]:
    table = open_table(small.lake.locate(T.table))
    assert table is not None
    return [commit["operation"] for commit in table.history()]


def check(small: SmallLake, *, inserted: int, updated: int, deleted: int) -> None:
    """Merge once more; the commit's own counts are those of the merge, and no table fails."""
    (done,) = small.merge(
        [update(T, "1", "b"), insert(T, "4", "b"), delete(T, "2"), insert(OTHER, "2")]
    )
    merged = done.tables["public.t"]
    assert (merged.inserted, merged.updated, merged.deleted) == (inserted, updated, deleted)
    assert merged.way is (WritePlan.MERGE if small.limits == MERGE_ONLY else WritePlan.REWRITE)
    assert small.rows(T) == [(1, "b"), (3, "a"), (4, "b")]
    assert small.rows(OTHER) == [(1,), (2,)]
    cut = find_cut(small.lake)
    assert cut is not None
    assert cut.merged["public.t"] == cut.bound
    assert small.merge([update(T, "3", "c")])[0].tables["public.t"].updated == 1


def test_a_table_that_compacts_itself_is_merged_like_any_other(small: SmallLake) -> None:
    run(small, "alter table {} set tblproperties (delta.autoOptimize.autoCompact = true)")
    small.merge([insert(T, "9", "x")])
    small.merge([delete(T, "9")])
    assert "OPTIMIZE" in find_operations(small)
    check(small, inserted=1, updated=1, deleted=1)


def test_an_optimize_right_after_a_merge_is_not_taken_for_it(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_rows = merge_by_key._merge

    def merge_and_optimize(*arguments: Any) -> None:
        merge_rows(*arguments)
        run(small, "optimize {}")

    monkeypatch.setattr(merge_by_key, "_merge", merge_and_optimize)
    check(small, inserted=1, updated=1, deleted=1)
    assert find_operations(small)[0] == "OPTIMIZE"


@pytest.mark.parametrize("is_small", [True, False], ids=["small", "large"])
def test_files_without_statistics_are_counted_by_their_footers(
    small: SmallLake, *, is_small: bool
) -> None:
    small.spark.conf.set("spark.databricks.delta.stats.collect", "false")
    run(small, "insert into {0} by name select * except (k), 7 as k from {0} where k = 3")
    small.spark.conf.unset("spark.databricks.delta.stats.collect")
    table = open_table(small.lake.locate(T.table))
    assert table is not None
    assert count_rows(small.lake.locate(T.table), table) == 4
    if is_small:
        small.limits = SPARK_ONLY
    small.merge([delete(T, "7")])
    check(small, inserted=1, updated=1, deleted=1)
