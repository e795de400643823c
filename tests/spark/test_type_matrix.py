"""All types with their edges through the real pipeline: what Delta holds gives back Postgres' text.

Three tables a server, a column for each type, for its arrays and for a domain over it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.rounds import merge_until
from spark_jobs.types_built_in import OIDS
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.spark.given_back import compare
from tests.spark.type_values import ADDED_LATER, make_arrays, make_types


def test_delta_gives_back_the_text_of_every_value_of_every_type(
    database: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    values = make_types(database)
    tables = {
        "scalars": values,
        "arrays": {f"{kind}[]": make_arrays(kind, texts) for kind, texts in values.items()},
        "domains": {},
    }
    for number, (kind, texts) in enumerate(values.items()):
        database.execute(f"create domain d{number} as {kind}")
        tables["domains"][f"d{number}"] = texts
    for table, kinds in tables.items():
        columns = [f"c{i} {kind}" for i, kind in enumerate(kinds)]
        database.execute(f"create table {table} (k int primary key, {', '.join(columns)})")
    pipeline = make_pipeline(database)
    for table in tables:
        database.execute(f"insert into {table} values (-1)")
    database.execute(ADDED_LATER)
    fill(database, tables)
    pipeline.catch_up()
    lake = Lake(pipeline.root, tmp_path / "state")
    merge_until(spark, lake, round_rows=1_000_000)

    wrong: list[tuple[str, ...]] = []
    kept: dict[str, list[pa.DataType]] = {}
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for table, kinds in tables.items():
            rows = spark.read.format("delta").load(str(pipeline.root / "tables" / "public" / table))
            held = rows.toArrow().sort_by("k")
            wrong += compare(connection, table, list(kinds), held)
            kept[table] = [held.schema.field(f"c{i}").type for i in range(len(kinds))]
    assert wrong == []
    assert kept["domains"] == kept["scalars"]
    assert sum(map(len, kept.values())) >= 300
    named = database.query(
        "select typname::text from pg_attribute a join pg_type t on t.oid = atttypid"
        " where attrelid = 'scalars'::regclass"
    )
    # The first has no input; the second is not in every build.
    assert {*OIDS} - {name for (name,) in named} <= {"gtsvector", "xml"}


def fill(database: Database, tables: dict[str, dict[str, list[str]]]) -> None:
    """Insert row `i` with value `i` of each column, or nothing; all in one transaction."""
    with psycopg.connect(database.dsn) as connection:
        for table, kinds in tables.items():
            for i in range(max(map(len, kinds.values()))):
                present = [(f"c{n}", v[i]) for n, v in enumerate(kinds.values()) if i < len(v)]
                connection.execute(
                    sql.SQL("insert into {} (k, {}) values ({}, {})").format(
                        sql.Identifier(table),
                        sql.SQL(", ").join(sql.Identifier(name) for name, _ in present),
                        sql.Literal(i),
                        sql.SQL(", ").join(sql.Literal(text) for _, text in present),
                    )
                )
