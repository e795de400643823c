"""Keys of many types through the real pipeline: rows are found again by what their key reads as."""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.fix_pipeline import Pipeline
from tests.spark.given_back import compare

# A key's type, one value of it, and where there is one an equal value that reads otherwise.
EXACT = {
    "small": ("-1", None),
    "oid": ("4294967295", None),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None),
    "bytea": ("\\x00ff5c", None),
    "bool": ("t", None),
    "text": (" a\n", None),
    "char(5)": ("a", None),
    "mood": ("sad", None),
    "pair": ("(1,a)", None),
    "inet": ("10.0.0.0/8", None),
    "interval": ("1 day", "24:00:00"),
    "citext": ("Case", "cASE"),
    "jsonb": ('{"a": 1.0}', '{"a": 1.00}'),
    "numrange": ("[1.0,2]", "[1.00,2]"),
    "timetz": ("24:00:00+00", None),
}
INEXACT = EXACT | {
    "numeric": ("1.50", "1.5"),
    "price": ("1.50", None),
    "float8": ("0", "-0"),
    "date": ("infinity", None),
    "timestamptz": ("0044-03-15 00:00:00+00 BC", None),
    "numeric[]": ("[0:1]={1.0,NULL}", "[0:1]={1,NULL}"),
    "text[]": ('{{a,NULL},{"",b}}', None),
}
TABLES = {"exact": EXACT, "inexact": INEXACT}


@pytest.mark.soak
def test_rows_are_found_again_by_keys_of_every_kind(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    database = pipeline.database
    for statement in (
        "create extension citext",
        "create domain small as int2",
        "create domain price as numeric(10,2)",
        "create type mood as enum ('sad')",
        "create type pair as (a int, b text)",
    ):
        database.execute(statement)
    for table, keys in TABLES.items():
        columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(keys))
        names = ", ".join(f"c{i}" for i in range(len(keys)))
        database.execute(
            f"create table {table} (k int, {columns}, c{len(keys)} text, primary key (k, {names}))"
        )
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for table, keys in TABLES.items():
            values = [value for value, _ in keys.values()]
            for k in range(4):
                connection.execute(
                    f"insert into {table} values ({k}{', %s' * len(keys)}, 'new')", values
                )
    merge(pipeline, spark)
    for table, keys in TABLES.items():
        note = f"c{len(keys)}"
        database.execute(f"update {table} set {note} = 'renewed' where k = 1")
        for i, (kind, (_, other)) in enumerate(keys.items()):
            if other is not None:
                database.execute(
                    f"update {table} set c{i} = %s::{kind}, {note} = 'moved' where k = 2", [other]
                )
        database.execute(f"delete from {table} where k = 3")
    merge(pipeline, spark)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for table, keys in TABLES.items():
            path = pipeline.root / "tables" / "public" / table
            held = spark.read.format("delta").load(str(path)).toArrow().sort_by("k")
            assert held.column(f"c{len(keys)}").to_pylist() == ["new", "renewed", "moved"]
            wrong = compare(connection, table, [*keys, "text"], held)
            assert [found for found in wrong if found[3] != "none"] == []
            assert ("_key" in held.column_names) == (table == "inexact")


def merge(pipeline: Pipeline, spark: SparkSession) -> None:
    """Stage and merge all that is committed now."""
    pipeline.catch_up()
    rounds = merge_until(spark, Lake(pipeline.lake), round_rows=1_000_000)
    assert [done.halted for done in rounds if done.halted] == []
