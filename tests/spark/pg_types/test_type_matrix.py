"""All types with their edges through the real pipeline: what Delta holds gives back Postgres' text.

Three tables a server, a column for each type, for its arrays and for a domain over it.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import Round, merge_until
from spark_jobs.pg_types.built_in import OIDS
from spark_jobs.query.stored import read_stored
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.spark.given_back import compare
from tests.spark.small_lake import MERGE_ONLY
from tests.spark.type_values import ADDED_LATER, make_arrays, make_types
from tests.verify.verifying import Verifying

Tables = dict[str, dict[str, list[str]]]


def test_delta_gives_back_the_text_of_every_value_of_every_type(
    database: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> None:
    tables = make_tables(database)
    pipeline = make_pipeline(database)
    fill(database, tables)
    merge_all(pipeline, spark)
    kept = require_equal(pipeline, spark, tables)
    require_same_by_arrow(pipeline, spark, tables)
    # Nor does a verification find a difference where there is none; version 15 has all types.
    if database.server.version == 15:
        verified = Verifying(pipeline, spark.newSession()).compare(*tables)
        assert [(one.result, len(one.ranges)) for one in verified.tables] == [("equal", 0)] * 3
    assert kept["domains"] == kept["scalars"]
    assert sum(map(len, kept.values())) >= 300
    named = database.query(
        "select typname::text from pg_attribute a join pg_type t on t.oid = atttypid"
        " where attrelid = 'scalars'::regclass"
    )
    # The first has no input; the second is not in every build.
    assert {*OIDS} - {name for (name,) in named} <= {"gtsvector", "xml"}


@pytest.mark.soak
def test_values_that_an_update_does_not_send_are_given_back_as_well(
    database: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> None:
    tables = make_tables(database)
    move_values_out_of_rows(database)
    pipeline = make_pipeline(database)
    fill(database, tables)
    merge_all(pipeline, spark)
    for table in tables:
        database.execute(f"update {table} set c0 = c0 where k % 2 = 1")
        database.execute(f"update {table} set k = k + 1000 where k % 2 = 0")
    done = merge_all(pipeline, spark, limits=MERGE_ONLY)
    assert {merged.way for merged in done.tables.values()} == {WritePlan.MERGE}
    log = spark.read.format("delta").load(str(pipeline.root / "staging" / "changes"))
    unsent = log.where("op = 'update'").selectExpr("sum(size(unchanged))").collect()[0][0]
    assert unsent > 500
    require_equal(pipeline, spark, tables)


def make_tables(database: Database) -> Tables:
    """Make the three tables; give the values of each column, by table and type."""
    values = make_types(database)
    domains = {}
    for number, (kind, texts) in enumerate(values.items()):
        database.execute(f"create domain d{number} as {kind}")
        domains[f"d{number}"] = texts
    arrays = {f"{kind}[]": make_arrays(kind, texts) for kind, texts in values.items()}
    tables = {"scalars": values, "arrays": arrays, "domains": domains}
    for table, kinds in tables.items():
        columns = [f"c{i} {kind}" for i, kind in enumerate(kinds)]
        database.execute(f"create table {table} (k int primary key, {', '.join(columns)})")
    return tables


def move_values_out_of_rows(database: Database) -> None:
    """Let whatever can be TOASTed be TOASTed early, uncompressed."""
    columns = database.query(
        "select attrelid::regclass::text, attname::text from pg_attribute"
        " where attrelid in ('scalars'::regclass, 'arrays'::regclass, 'domains'::regclass)"
        " and attnum > 0 and attstorage <> 'p'"
    )
    for table, column in columns:
        database.execute(f"alter table {table} alter column {column} set storage external")
    for table in {table for table, _ in columns}:
        database.execute(f"alter table {table} set (toast_tuple_target = 128)")


def fill(database: Database, tables: Tables) -> None:
    """Insert a row of NULLs, then row `i` with value `i` of each column, or nothing."""
    for table in tables:
        database.execute(f"insert into {table} values (-1)")
    database.execute(ADDED_LATER)
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


def merge_all(
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    limits: MergeLimits = DEFAULT_LIMITS,
) -> Round:
    """Stage and merge what is committed now."""
    pipeline.catch_up()
    lake = Lake(pipeline.lake)
    (done,) = merge_until(spark, lake, round_rows=1_000_000, limits=limits)
    return done


def require_same_by_arrow(pipeline: Pipeline, spark: SparkSession, tables: Tables) -> None:
    """Fail unless Arrow reads the rows that Spark reads."""
    lake = Lake(pipeline.lake)
    for name in tables:
        table = TableName("public", name)
        path = lake.locate(table).uri
        by_arrow = read_stored(lake, table, DeltaTable(path))
        by_spark = spark.read.format("delta").load(path).toArrow()
        # NaN is not equal to itself.
        found, expected = (repr(rows.sort_by("k").to_pylist()) for rows in (by_arrow, by_spark))
        assert found == expected, name


def require_equal(
    pipeline: Pipeline, spark: SparkSession, tables: Tables
) -> dict[str, list[pa.DataType]]:
    """Fail unless each table gives back its source's texts; give the types of its columns."""
    wrong: list[tuple[str, ...]] = []
    kept: dict[str, list[pa.DataType]] = {}
    with psycopg.connect(pipeline.database.dsn, autocommit=True) as connection:
        for table, kinds in tables.items():
            path = pipeline.root / "tables" / "public" / table
            held = spark.read.format("delta").load(str(path)).toArrow().sort_by("k")
            wrong += compare(connection, table, list(kinds), held)
            kept[table] = [held.schema.field(f"c{i}").type for i in range(len(kinds))]
    assert wrong == []
    return kept
