"""A table that was sent under another name for a while, or not at all, is read whole again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.staging.tables import read_rows, reopen_table
from cdc_core.vocabulary import Relation
from spark_jobs.schema.evolution import Halt, TableSchema, evolve
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

TABLES = (
    "create schema sales",
    "create schema archive",
    "create table sales.t (id int primary key, v int)",
)


@pytest.mark.parametrize(
    ("published", "away", "name", "back"),
    [
        (
            "for all tables",
            "alter table sales.t rename to other",
            "sales.other",
            "alter table sales.other rename to t",
        ),
        (
            "for tables in schema sales",
            "alter table sales.t set schema archive",
            "archive.t",
            "alter table archive.t set schema sales",
        ),
    ],
    ids=["renamed", "moved"],
)
@pytest.mark.parametrize("is_stopped", [False, True], ids=["one session", "two sessions"])
def test_a_table_that_comes_back_to_its_name_halts_until_it_is_read_whole(
    database: Database,
    make_pipeline: Callable[..., Pipeline],
    published: str,
    away: str,
    name: str,
    back: str,
    *,
    is_stopped: bool,
) -> None:
    pipeline = make_pipeline(database)
    for statement in (*TABLES, "drop publication walgate"):
        database.execute(statement)
    database.execute(f"create publication walgate {published}")
    pipeline.make_slot_again()
    database.execute("insert into sales.t values (1, 1)")
    database.execute(away)
    database.execute(f"update {name} set v = -1")
    if is_stopped:
        pipeline.catch_up()
    database.execute(back)
    database.execute("insert into sales.t values (2, 2)")
    pipeline.catch_up()
    relations = [r for r in list_relations(pipeline) if str(r.table) == "sales.t"]
    assert isinstance(evolve(TableSchema.of(relations[0]), relations[-1]), Halt)


def list_relations(pipeline: Pipeline) -> list[Relation]:
    """The relations that the log has, in order."""
    rows = read_rows(reopen_table(LocalPlace.of(pipeline.root / "staging" / "relations")))
    rows.sort(key=lambda row: row["ordinal"])
    return [Relation.from_description(row) for row in rows]
