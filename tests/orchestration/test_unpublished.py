"""A table that is published no more says what became of it, and what to do."""

from __future__ import annotations

from cdc_core.settings import load_settings
from orchestration.status.status import read_status
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

TOLD = {
    "dropped": "it was dropped in the source",
    "made_again": "it was dropped and made again, and no publication has the new table",
    "moved": 'it was renamed to "Old".moved, which is replicated under that name',
    "renamed": "it was renamed to public.b, which is replicated under that name",
    "renamed_and_left": "it was renamed to public.c, which no publication has",
    "gone": "no publication has it any more",
}
KEPT = ["public.b", "public.here", '"Old".moved']


def test_status_says_what_became_of_a_table_that_is_published_no_more(
    pipeline: Pipeline, database18: Database
) -> None:
    tables = [*TOLD, "here"]
    database18.execute("drop publication walgate")
    for table in tables:
        database18.execute(f"create table {table} (id int primary key)")
    database18.execute(f"create publication walgate for table {', '.join(tables)}")
    pipeline.make_slot_again()
    for table in tables:
        database18.execute(f"insert into {table} values (1)")
    pipeline.catch_up()
    for statement in (
        "drop table dropped",
        "drop table made_again",
        "create table made_again (id int primary key)",
        'create schema "Old"',
        'alter table moved set schema "Old"',
        "alter table renamed rename to b",
        "alter table renamed_and_left rename to c",
        "alter publication walgate drop table c",
        "alter publication walgate drop table gone",
        "insert into b values (2)",
    ):
        database18.execute(statement)

    def read() -> dict[str, dict[str, str]]:
        answer = read_status(load_settings(pipeline.folder / "walgate.toml", {}))
        return {table["table"]: table for table in answer["tables"]}

    for _ in range(2):
        found = read()
        stays = "; its rows stay in the lake"
        assert {name: table["reason"] for name, table in found.items() if name not in KEPT} == {
            f"public.{name}": reason + stays for name, reason in TOLD.items()
        }
        assert {found[f"public.{name}"]["state"] for name in TOLD} == {"halted"}
        assert {found[name]["state"] for name in KEPT} == {"queued"}
        # The stream has announced it under its new name as well.
        pipeline.catch_up()
    assert found["public.renamed"]["fix"] == "query public.b; nothing must be done"
    assert "run `walgate publish 'public.c'`" in found["public.renamed_and_left"]["fix"]
    assert "run `walgate publish 'public.gone'`" in found["public.gone"]["fix"]
