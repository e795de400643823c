"""Names of any spelling, of schemas, tables, columns and publication, from source to query."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from cdc_core.errors import LakeError
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.query.sql import answer_query
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

NAMES = [
    "../../x",
    "..",
    "/etc/passwd",
    "n" * 63,
    "ü" * 31 + "x",
    "a\"b'c`d\\e",
    "two\nlines\ttab\r",
    "🎈 balloon.",
    "NUL",
    "select",
    "%41~41",
    "${x} {0} $1",
    "--; drop table t",
    "100%",
    "%s %(x)s %% %",
]
# Each table has a column of every name.
KEY = "the\nkey, 100%"
FEW = [
    (NAMES[0], NAMES[5]),
    (NAMES[6], NAMES[3]),
    (NAMES[7], NAMES[0]),
    ("public", "100%"),
    ("%s %(x)s %% %", "%s"),
]
ALL = [(NAMES[0] if i % 2 else NAMES[6], name) for i, name in enumerate(NAMES)]
PUBLICATION = "pub\"li'c`at\n🎈,x%s%"


def make_hostile(database18: Database, pipeline: Pipeline, tables: list[tuple[str, str]]) -> None:
    """Give all that has a name a hostile one."""
    file = pipeline.folder / "walgate.toml"
    name = PUBLICATION.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    file.write_text(file.read_text().replace("[lake]", f'publication = "{name}"\n[lake]'))
    with psycopg.connect(database18.dsn, autocommit=True) as connection:
        connection.execute("drop publication walgate")
        for schema, table in tables:
            connection.execute(
                sql.SQL("create schema if not exists {}").format(sql.Identifier(schema))
            )
            columns = sql.SQL(", ").join(
                sql.SQL("{} text").format(sql.Identifier(column)) for column in NAMES
            )
            connection.execute(
                sql.SQL("create table {} ({} int primary key, {})").format(
                    sql.Identifier(schema, table), sql.Identifier(KEY), columns
                )
            )
        create = sql.SQL("create publication {} for all tables")
        connection.execute(create.format(sql.Identifier(PUBLICATION)))
        drop = "select pg_drop_replication_slot(%s)"
        connection.execute(drop, [pipeline.slot])
        connection.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot]
        )


@pytest.mark.parametrize(
    "tables", [pytest.param(FEW, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.soak)]
)
def test_names_of_any_spelling_reach_a_query(
    database18: Database, pipeline: Pipeline, spark: SparkSession, tables: list[tuple[str, str]]
) -> None:
    hostile = pipeline
    make_hostile(database18, hostile, tables)
    before = set(hostile.folder.parent.iterdir())
    with psycopg.connect(database18.dsn, autocommit=True) as connection:
        for schema, table in tables:
            insert = sql.SQL("insert into {} values (1, {})").format(
                sql.Identifier(schema, table), sql.SQL(", ").join(map(sql.Literal, NAMES))
            )
            connection.execute(insert)
            connection.execute(
                sql.SQL("update {} set {} = 'changed'").format(
                    sql.Identifier(schema, table), sql.Identifier(NAMES[0])
                )
            )
    hostile.catch_up()
    checked = run_walgate("check", folder=hostile.folder)
    assert checked.exit_code == 0, checked
    lake = Lake(hostile.lake)
    session = spark.newSession()
    (done,) = merge_until(session, lake, round_rows=1_000_000)
    assert not done.halted
    assert len(done.tables) == len(tables)
    bound = find_bound_at(lake, "latest")
    for schema, table in tables:
        quoted = ".".join("`" + name.replace("`", "``") + "`" for name in (schema, table))
        answer = answer_query(session, lake, f"select * from {quoted}", bound).rows.collect()
        assert [row[: len(NAMES) + 1] for row in map(tuple, answer)] == [
            (1, "changed", *NAMES[1:])
        ], table
    status = run_walgate("status", "--json", folder=hostile.folder)
    assert status.exit_code == 0, status
    # Nothing was written but below the lake and the state folder, whatever the names say.
    assert set(hostile.folder.parent.iterdir()) == before
    assert {path.name for path in hostile.folder.iterdir()} <= {"lake", ".walgate", "walgate.toml"}
    folders = [path for path in (hostile.root / "tables").glob("*/*") if path.is_dir()]
    assert len(folders) == len(tables)
    for path in (hostile.root / "tables").rglob("*"):
        assert path.resolve().is_relative_to(hostile.root.resolve())
        _require_portable(path)


def test_tables_that_differ_in_case_only_are_kept_apart_and_not_mistaken_in_sql(
    database18: Database, pipeline: Pipeline, spark: SparkSession
) -> None:
    for name in ("t", "T"):
        database18.execute(f'create table "{name}" (id int primary key, v text)')
        database18.execute(f"insert into \"{name}\" values (1, '{name}')")
    pipeline.catch_up()
    assert "path_clash" in run_walgate("check", folder=pipeline.folder).stdout
    lake = Lake(pipeline.lake)
    session = spark.newSession()
    (done,) = merge_until(session, lake, round_rows=1_000_000)
    assert not done.halted
    for name in ("t", "T"):
        path = str(pipeline.root / "tables" / "public" / name)
        (row,) = session.read.format("delta").load(path).collect()
        assert (row.id, row.v) == (1, name)
        for query in (f"select * from `{name}`", f"select * from public.{name}"):
            with pytest.raises(LakeError, match="differ in case only"):
                answer_query(session, lake, query, find_bound_at(lake, "latest"))


def _require_portable(path: Path) -> None:
    assert path.name.isascii(), path
    assert not set(path.name) & set('<>:"|?*\\\n\t '), path
    assert len(path.name) <= 255
